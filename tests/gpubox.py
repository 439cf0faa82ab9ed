"""A box without a box: a shell in a folder, whose `nvidia-smi` prints what real ones print."""

from pathlib import Path

from gpurun.recipe import Recipe, load
from gpurun.shell.local import LocalShell
from tests.boxes.fleet import Fleet
from tests.boxes.gpus import Gpus

SHIMS = Path(__file__).parent / "boxes" / "shims"


class GpuBox:
    """`shell` runs in `root`; `gpus` says what its commands see."""

    def __init__(self, folder: Path, fleet: Fleet) -> None:
        self.root = folder / "root"
        self.bin = folder / "bin"
        tables = folder / "gpu"
        for each in (self.root, self.bin, tables):
            each.mkdir(parents=True)
        self.gpus = Gpus(fleet, tables, folder.name)
        if fleet.command:
            text = (SHIMS / "nvidia-smi").read_text().replace("/var/lib/gpu", str(tables))
            self.command("nvidia-smi", text)
        self.shell = LocalShell(self.root, env=self.environment())

    def environment(self, path: str = "/usr/local/bin:/usr/bin:/bin") -> dict[str, str]:
        """Without a package registry: port 9 of this machine is closed."""
        return {
            "PATH": f"{self.bin}:{path}",
            "HOME": str(self.root),
            "LANG": "C.UTF-8",
            "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        }

    def command(self, name: str, text: str) -> None:
        """Put a command before all others of this name."""
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)


def recipe(folder: Path, text: str = "", **need: object) -> Recipe:
    """A recipe that asks for these things; `text` is YAML beside them."""
    wants = {"gpu": "H100", "gpu_count": 4, "disk_gb": 1} | need
    lines = "".join(f"  {name}: {_yaml(value)}\n" for name, value in wants.items())
    path = folder / "needs.yaml"
    path.write_text(
        f"name: needs\nneed:\n{lines}"
        "budget: {max_usd_per_hour: 10, max_usd: 10, setup_minutes: 10, run_minutes: 1}\n" + text
    )
    return load(str(path), provider="local")


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value}"
