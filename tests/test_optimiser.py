"""AdamATan2 on a box: the extension that works, or PyTorch, and always said which.

torch and adam-atan2 are stand-ins here, everything else is real: the scripts, pip, the wheels.
"""

import io
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun import wheels
from gpurun.errors import PhaseFailed
from gpurun.phases import OPTIMISER_FILE
from gpurun.phases.optimiser import (
    _SETTLE,
    PACKAGE,
    VERSION,
    WHEELS,
    build_text,
    chosen,
    extension_text,
)
from gpurun.phases.steps import once
from gpurun.recipe import load
from gpurun.shell import Result
from gpurun.shell.local import LocalShell
from tests.gpubox import SHIMS, recipe

STUBS = Path(__file__).parent / "stubs"
BUILT = "cuda AdamATan2, CUDA extension built on this box\n"
REUSED = "cuda AdamATan2, CUDA extension from a wheel that an equal box has built\n"


class Box:
    """A box with a virtual environment, nvcc, and a package folder instead of a registry."""

    def __init__(self, folder: Path, packages: Path, nvcc: str = "12.4", **settings: str) -> None:
        self.root = folder / "root"
        self.root.mkdir(parents=True)
        self.said: list[str] = []
        make_venv(self.root)
        site = next((self.root / "venv" / "lib").glob("python3*")) / "site-packages"
        shutil.copy(STUBS / "torch.py", site)
        if nvcc:
            tool = folder / "bin" / "nvcc"
            tool.parent.mkdir()
            text = (SHIMS / "nvcc").read_text().replace("$(cat /usr/local/cuda/release)", nvcc)
            tool.write_text(text)
            tool.chmod(0o755)
        self.env = {
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
            "HOME": str(folder),
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(packages),
            "GPUS": "9.0 9.0",
            **settings,
        }

    @property
    def shell(self) -> LocalShell:
        return LocalShell(self.root, env=self.env)

    def settle(self, how: str = "auto", kept: Path | None = None) -> Result:
        """The three steps of the setup."""
        if kept:
            wheels.reuse(self.shell, kept, self.said.append)
        done = self.shell.run(once(extension_text(how)), timeout_s=120)
        if kept:
            wheels.keep(self.shell, kept, self.said.append)
        return done

    @property
    def optimiser(self) -> str:
        file = self.root / OPTIMISER_FILE
        return file.read_text() if file.exists() else ""

    def imports(self) -> bool:
        return self.shell.run("venv/bin/python -c 'import adam_atan2'", timeout_s=20).ok


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """adam-atan2 as a source distribution, and what its build asks for."""
    folder = tmp_path_factory.mktemp("packages")
    with tarfile.open(folder / "adam_atan2-0.0.3.tar.gz", "w:gz") as sdist:
        for name, text in {
            "setup.py": (STUBS / "adam_atan2_setup.py").read_text(),
            "adam_atan2.py": (STUBS / "adam_atan2.py").read_text(),
            "adam_atan2_backend.py": "",
            "PKG-INFO": "Metadata-Version: 2.1\nName: adam-atan2\nVersion: 0.0.3\n",
        }.items():
            entry = tarfile.TarInfo(f"adam_atan2-0.0.3/{name}")
            entry.size = len(text)
            sdist.addfile(entry, io.BytesIO(text.encode()))
    for name in ("setuptools_scm", "ninja", "wheel"):
        with zipfile.ZipFile(folder / f"{name}-9.0-py3-none-any.whl", "w") as wheel:
            info = f"{name}-9.0.dist-info"
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.0")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    return folder


@pytest.fixture
def make(tmp_path: Path, packages: Path) -> Callable[..., Box]:
    made: list[Box] = []

    def one(**settings: str) -> Box:
        made.append(Box(tmp_path / f"box{len(made)}", packages, **settings))
        return made[-1]

    return one


def test_the_extension_is_built_tried_and_said(make: Callable[..., Box]) -> None:
    box = make()
    done = box.settle()
    assert done.ok, done.output
    assert box.optimiser == BUILT
    assert "optimiser: AdamATan2, CUDA extension built on this box" in done.output
    assert box.imports()
    assert box.settle().output == "done before on this box\n"


def test_a_wheel_is_kept_and_the_next_equal_box_needs_no_compiler(
    make: Callable[..., Box], tmp_path: Path
) -> None:
    kept, first, second = tmp_path / "wheels", make(), make(nvcc="")
    assert first.settle(kept=kept).ok
    [key] = list(kept.iterdir())
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    machine = sysconfig.get_platform().partition("-")[2]
    assert key.name == f"adam-atan2-0.0.3-torch2.5.1+cu124-cuda12.4-sm90-{python}-{machine}"
    assert "is kept for the next box" in first.said[-1]
    done = second.settle(kept=kept)
    assert done.ok, done.output
    assert second.optimiser == REUSED
    assert "building" not in done.output
    assert second.settle(kept=kept).ok  # decided: nothing is uploaded or fetched again
    assert len(second.said) == 1


@pytest.mark.parametrize(
    "other", [{"GPUS": "8.0"}, {"TORCH": "2.6.0+cu124"}, {"CUDA": "12.6"}, {"GPUS": "8.0 9.0"}]
)
def test_a_wheel_is_for_an_equal_box_alone(
    make: Callable[..., Box], tmp_path: Path, other: dict[str, str]
) -> None:
    kept = tmp_path / "wheels"
    make().settle(kept=kept)
    box = make(**other)
    box.settle(kept=kept)
    assert box.said[0].startswith("no wheel is kept for adam-atan2-0.0.3-")
    assert box.optimiser == BUILT
    assert len(list(kept.iterdir())) == 2


def test_a_kept_wheel_that_does_not_work_is_built_anew_and_replaced(
    make: Callable[..., Box], tmp_path: Path
) -> None:
    kept = tmp_path / "wheels"
    make().settle(kept=kept)
    [wheel] = kept.glob("*/*.whl")
    with zipfile.ZipFile(wheel) as good:
        files = {name: good.read(name) for name in good.namelist()}
    files["adam_atan2_backend.py"] = b"raise ImportError('undefined symbol: _ZN3c10')"
    with zipfile.ZipFile(wheel, "w") as broken:
        for name, data in files.items():
            broken.writestr(name, data)
    (wheel.parent / "sha256").write_text(wheels._sha256(wheel))
    spoiled = wheel.read_bytes()
    box = make()
    done = box.settle(kept=kept)
    assert "does not work here: ImportError: undefined symbol: _ZN3c10" in done.output
    assert box.optimiser == BUILT
    assert wheel.read_bytes() != spoiled


def test_a_kept_wheel_that_was_changed_here_is_not_used(
    make: Callable[..., Box], tmp_path: Path
) -> None:
    kept = tmp_path / "wheels"
    make().settle(kept=kept)
    [wheel] = kept.glob("*/*.whl")
    wheel.write_bytes(wheel.read_bytes() + b"more")
    box = make()
    box.settle(kept=kept)
    assert box.said[0].startswith("no wheel is kept")
    assert box.optimiser == BUILT


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"nvcc": ""}, "nvcc is not on this box: take a `-devel` image to build it"),
        ({"nvcc": "11.8"}, "nvcc is of CUDA 11, torch of 12.4"),
        ({"GPUS": ""}, "torch sees no GPU"),
        ({"GPUS": "7.5"}, "it has no kernels for compute capability 7.5"),
        ({"GPUS": "10.0"}, "it has no kernels for compute capability 10.0"),
        ({"GPUS": "9.0 12.0"}, "it has no kernels for compute capability 12.0"),
        ({"NO_COMPILE": "1"}, "RuntimeError: Error compiling objects for extension"),
        ({"WRONG": "1"}, "one step on GPU 0 is off by 3.3e-05"),
    ],
)
def test_where_the_extension_does_not_work_pytorch_does_and_it_is_said(
    make: Callable[..., Box], tmp_path: Path, settings: dict[str, str], why: str
) -> None:
    box = make(**settings)
    done = box.settle(kept=tmp_path / "wheels")
    assert done.ok, done.output
    says = "AdamATan2 in PyTorch, for the CUDA extension does not work here: "
    assert box.optimiser.startswith(f"torch {says}")
    assert why in box.optimiser
    assert box.optimiser.count("\n") == 1
    assert f"optimiser: {says}" in done.output
    assert not box.imports()  # what does not work is not left for the training to find
    assert not (tmp_path / "wheels").exists()


def test_where_the_extension_must_work_its_failure_is_the_setups(make: Callable[..., Box]) -> None:
    box = make(nvcc="")
    done = box.settle("cuda")
    assert done.exited == 1
    assert "adam-atan2 0.0.3 does not work here: nvcc is not on this box" in done.output
    assert "set setup.adam_atan2 to auto" in done.output
    assert box.optimiser == ""
    assert not box.settle("cuda").ok  # failed, so it is not done


def test_a_wheel_without_its_cuda_part_is_no_extension(make: Callable[..., Box]) -> None:
    box = make(ISOLATED="1")
    assert box.settle().ok
    assert "it was built without its CUDA part" in box.optimiser
    assert not box.imports()


def test_a_wheel_without_its_cuda_part_in_a_cache_is_not_taken(
    make: Callable[..., Box], tmp_path: Path
) -> None:
    """Somebody has built it with isolation on this machine before."""
    cache = tmp_path / "cache"
    isolated = make(ISOLATED="1")
    build = "venv/bin/python -m pip wheel -q --no-build-isolation --no-deps adam-atan2==0.0.3 -w"
    assert isolated.shell.run(f"{build} {cache}", timeout_s=60).ok
    assert [wheel.name for wheel in cache.iterdir()] == ["adam_atan2-0.0.3-py3-none-any.whl"]
    box = make()
    box.env["PIP_FIND_LINKS"] += f" {cache}"
    box.settle()
    assert box.optimiser == BUILT


def test_an_extension_that_is_on_the_box_is_used(make: Callable[..., Box]) -> None:
    box = make()
    box.settle()
    (box.root / OPTIMISER_FILE).unlink()
    shutil.rmtree(box.root / ".gpurun" / "done")
    assert box.settle().ok
    assert box.optimiser == "cuda AdamATan2, CUDA extension that was on the box\n"


def test_the_real_package_on_a_torch_for_the_cpu_fails_in_words(tmp_path: Path) -> None:
    """adam-atan2 0.0.3 itself, from the registry, with the torch of this environment."""
    root = tmp_path / "root"
    root.mkdir()
    make_venv(root)
    shell = LocalShell(root, env={**environment_of_pip(), "HOME": str(tmp_path)})
    text = (
        f"{_SETTLE}mkdir -p {WHEELS}; log=log; how=auto\n"
        + extension_text("auto").partition("works() {")[0].partition("log=")[2].partition("\n")[2]
        + 'without() { settle torch "$1"; exit 0; }\n'
        + build_text()
    )
    done = shell.run(f"set -e\n{text}", timeout_s=120)
    assert done.ok, done.output
    assert "CUDA_HOME environment variable is not set" in (root / OPTIMISER_FILE).read_text()


# What a hostile box says of its wheel.


@pytest.mark.parametrize(
    ("listing", "why"),
    [
        ("12 {sha}  ../../evil.whl\nkey\n{key}\n", "strangely"),
        ("12 {sha}  adam_atan2-0.0.3-cp311-cp311-x.whl\nkey\n../../evil\n", "strangely"),
        ("9999999999 {sha}  {name}\nkey\n{key}\n", "more than a wheel has"),
        ("12 {sha}  {name}\nkey\n{key}\n", "it arrived with digest"),
        ("nonsense\n", "strangely"),
    ],
)
def test_no_name_of_a_box_writes_elsewhere(tmp_path: Path, listing: str, why: str) -> None:
    words = {
        "sha": "0" * 64,
        "name": "adam_atan2-0.0.3-cp311-cp311-linux_x86_64.whl",
        "key": "adam-atan2-0.0.3-torch2",
    }

    class Hostile(LocalShell):
        def run(self, command: str, **_: object) -> Result:  # type: ignore[override]
            return Result(0, listing.format(**words))

    (tmp_path / "root" / WHEELS).mkdir(parents=True)
    (tmp_path / "root" / WHEELS / words["name"]).write_text("evil")
    said: list[str] = []
    wheels.keep(Hostile(tmp_path / "root"), tmp_path / "kept" / "wheels", said.append)
    assert why in said[-1]
    assert [path for path in (tmp_path / "kept").rglob("*") if path.is_file()] == []


def test_a_wheel_that_does_not_arrive_whole_is_not_installed(
    make: Callable[..., Box], tmp_path: Path
) -> None:
    kept = tmp_path / "wheels"
    make().settle(kept=kept)
    box = make()

    class Lossy(LocalShell):
        def put(self, source: Path, target: str) -> None:
            (self.root / target).write_bytes(source.read_bytes()[:100])

    with pytest.raises(PhaseFailed, match="did not arrive whole"):
        wheels.reuse(Lossy(box.root, env=box.env), kept, box.said.append)
    assert list((box.root / WHEELS).iterdir()) == []


# What the recipe asks.


def test_only_who_trains_with_our_optimiser_gets_it_built(tmp_path: Path) -> None:
    assert chosen(load("smoke")) == "auto"
    assert chosen(load("smoke", provider="local")) == "torch"
    own = "train: {run: python app/train.py}\n"
    assert chosen(recipe(tmp_path, own)) is None
    assert chosen(recipe(tmp_path, own + "setup: {adam_atan2: cuda}\n")) == "cuda"
    assert (PACKAGE, VERSION) == ("adam-atan2", "0.0.3")


def make_venv(root: Path) -> None:
    """With the packages of this environment behind its own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root / "venv")], check=True)
    site = next((root / "venv" / "lib").glob("python3*")) / "site-packages"
    (site / "ours.pth").write_text(f"{sysconfig.get_path('purelib')}\n")


def environment_of_pip() -> dict[str, str]:
    from tests.boxes import registry

    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **registry.environment()}
