"""Accept, setup and ship on real boxes over SSH, in the shapes that are for rent."""

import dataclasses
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gpurun.clock import SystemClock
from gpurun.engine import accept
from gpurun.hardware import misfits
from gpurun.phases import PHASES, Command, Facts, Upload
from gpurun.provider import Login
from gpurun.rsync import Rsync
from gpurun.shell import Result
from gpurun.shell.fabric import FabricShell
from gpurun.ship import bring
from tests.boxes import Shape, box, registry, shape
from tests.gpubox import recipe
from tests.test_bundle import names, packed, write

pytestmark = pytest.mark.box
PRINTS = 'echo "Welcome!"; echo "=gpu 0, NVIDIA H100, 1, 2, 3, 4, Disabled, 9.0"\n'


@contextmanager
def rented(kind: Shape, folder: Path) -> Iterator[FabricShell]:
    with box(kind) as made, ExitStack() as undo:
        root = "/workspace/run" if kind.workspace == "own" else f"/tmp/run-{kind.user}"
        made.sh(f"install -d -o {kind.user} {root}")
        login = Login("box-1", made.user, ((made.host, made.port),), root, made.key)
        shell = FabricShell(login, folder / "known_hosts")
        undo.callback(shell.close)
        yield shell


def wrong(kind: Shape, folder: Path, text: str = "", **need: object) -> list[str]:
    with rented(kind, folder) as shell:
        seen = accept.look(shell, SystemClock())
        assert seen.clock_off_s == 0
        return misfits(seen.hardware, recipe(folder, text, **need))


LOADER = "train: {run: x, loader: {workers: 4, prefetch: 2, batch_mb: 6}}\n"


@pytest.mark.parametrize(
    ("kind", "need", "text", "says"),
    [
        (shape.H100X4, {"nvlink": True, "vram_gb": 80}, LOADER, ""),
        (shape.H100X4, {"gpu": "H200"}, "", "need.gpu is H200"),
        (shape.H100X4, {"gpu_count": 8}, "", "it has 4 GPUs, need.gpu_count is 8"),
        (shape.H100X4_PCIE, {"gpu": "H100 SXM"}, "", "need.gpu is H100 SXM"),
        (shape.H100X4_PCIE, {"nvlink": True}, "", "not joined by NVLink"),
        (shape.A100X4, {"gpu": "A100_80GB", "nvlink": True}, "", ""),
        (shape.A100X4_40GB, {"gpu": "A100", "vram_gb": 80}, "", "its GPUs have 42.9 GB each"),
        (shape.H200X8, {"gpu": "H200", "gpu_count": 8, "nvlink": True}, "", ""),
        (shape.L40SX1, {"gpu": "L40S", "gpu_count": 1, "vram_gb": 48}, "", ""),
        (shape.MIXED, {}, "", "only 2 of its GPUs fit"),
        (shape.MIXED, {"gpu_count": 2}, "", ""),
        (shape.WITHOUT_DRIVER, {}, "", "couldn't communicate with the NVIDIA driver"),
        (shape.WITHOUT_DEVICES, {}, "", "No devices were found"),
        (shape.WITHOUT_GPUS, {}, "", "nvidia-smi is not there"),
        (shape.UBUNTU_VM, {}, "", ""),
        (dataclasses.replace(shape.H100X4, rc=PRINTS), {}, "", ""),
        (dataclasses.replace(shape.H100X4, shm_mb=64), {}, "", ""),
        (dataclasses.replace(shape.H100X4, shm_mb=64), {}, LOADER, "/dev/shm has 0.07 GB"),
        (dataclasses.replace(shape.H100X4, disk_mb=500), {"disk_gb": 200}, "", "of disk are free"),
        (
            dataclasses.replace(shape.H100X4, without=("tmux", "curl", "rsync", "git", "timeout")),
            {},
            "",
            "",
        ),
        (
            dataclasses.replace(shape.FROM_NOTHING, network="none", without=("python3",)),
            {},
            "",
            "it has no python3",
        ),
    ],
)
def test_a_shape_is_accepted_or_refused_in_a_sentence(
    tmp_path: Path, kind: Shape, need: dict[str, object], text: str, says: str
) -> None:
    found = wrong(kind, tmp_path, text, **need)
    assert [says in line for line in found] == ([True] if says else []), found


@pytest.mark.parametrize("newer", [False, True])
def test_a_gpu_that_falls_off_its_bus(tmp_path: Path, newer: bool) -> None:
    with box(shape.H100X4) as made:
        made.gpus.lose(2, newer=newer)
        login = Login("box-1", made.user, ((made.host, made.port),), "/workspace", made.key)
        shell = FabricShell(login, tmp_path / "known_hosts")
        seen = accept.look(shell, SystemClock())
        shell.close()
    [line] = misfits(seen.hardware, recipe(tmp_path))
    assert "Unable to determine the device handle for GPU" in line


def test_what_a_vm_says_of_itself(tmp_path: Path) -> None:
    with rented(shape.UBUNTU_VM, tmp_path) as shell:
        found = accept.look(shell, SystemClock()).hardware
    assert (found.user, found.is_root, found.has_sudo) == ("ubuntu", False, True)
    assert found.capabilities == ("9.0",)
    assert found.nvlink is True
    assert found.driver_cuda == "12.8"


# From nothing: a Debian without pip, venv, git or tmux, as root and as a user with sudo.

SETUP = """\
setup: {apt: [tree], pip: [iniconfig==2.0.0], device: cpu}
"""


def step(shell: FabricShell, text: str) -> Result:
    """As the engine runs a step."""
    given = "".join(f"export {name}='{value}'\n" for name, value in registry.environment().items())
    prefix = f"{given}set -e\n[ ! -f .gpurun/env.sh ] || . ./.gpurun/env.sh\n"
    return shell.run(prefix + text, timeout_s=240)


@pytest.mark.slow
@pytest.mark.parametrize("user", ["root", "ubuntu"])
def test_a_box_with_nothing_is_set_up(tmp_path: Path, user: str) -> None:
    kind = dataclasses.replace(
        shape.FROM_NOTHING, user=user, share=tuple(registry.folders()), shm_mb=64
    )
    asked = recipe(tmp_path, SETUP, gpu="none", gpu_count=1)
    with rented(kind, tmp_path) as shell:
        hardware = accept.look(shell, SystemClock()).hardware
        assert misfits(hardware, asked) == []
        assert not {"pip", "venv", "git", "tmux"} & hardware.tools
        facts = Facts("ab12", "label", "run", "", hardware)
        for phase in ("ship", "setup"):
            for each in PHASES[phase](asked, facts):
                if isinstance(each, Upload):
                    continue
                assert isinstance(each, Command)
                done = step(shell, each.text)
                assert done.ok, f"{each}: {done.output}"
        told = step(shell, "python -c 'import iniconfig, sys; print(sys.prefix)'; command -v tree")
        assert told.output.splitlines()[-1] == "/usr/bin/tree"
        assert told.output.splitlines()[0].endswith("/venv")
        again = step(shell, next(iter(PHASES["setup"](asked, facts))).text)  # type: ignore[union-attr]
        assert again.output.endswith("done before on this box\n")


# Ship.


def test_a_cargo_arrives_and_changes_on_a_box_with_little_on_it(tmp_path: Path) -> None:
    kind = dataclasses.replace(
        shape.FROM_NOTHING, network="none", without=("python3", "rsync", "git", "curl")
    )
    odd = ["-rf", "a b", "é.py", "line\nbreak", "$(touch pwned)", "quote'\"", "sub/c.py"]
    code = write(tmp_path / "code", dict.fromkeys(odd, "1"))
    (code / "again").symlink_to("sub")
    with rented(kind, tmp_path) as shell:
        first = bring(shell, packed(code, tmp_path), tmp_path / "archives")
        assert first.files == len(packed(code, tmp_path).files)
        (code / "a b").write_text("2")
        (code / "-rf").unlink()
        second = bring(shell, packed(code, tmp_path), tmp_path / "archives")
        assert (second.files, second.removed) == (1, 1)
        assert second.bytes < 1000
        listed = shell.run("cd app && find . ! -type d -print0 | sort -z", timeout_s=20).output
    there = sorted(f"app/{name.removeprefix('./')}" for name in listed.split("\0")[:-1])
    assert there == sorted(names(packed(code, tmp_path)))


def test_a_cargo_arrives_though_every_fifth_packet_is_lost(tmp_path: Path) -> None:
    code = write(tmp_path / "code", {"a.py": "1"})
    (code / "weights.bin").write_bytes(os.urandom(40_000_000))
    with box() as made, ExitStack() as undo:
        login = Login("box-1", made.user, ((made.host, made.port),), "/workspace", made.key)
        shell = FabricShell(login, tmp_path / "known_hosts")
        undo.callback(shell.close)

        made.loss(20)
        try:
            bring(shell, packed(code, tmp_path), tmp_path / "archives")
        except OSError:  # given up for now: the next drive takes it up where it stopped
            made.loss(0)
            bring(shell, packed(code, tmp_path), tmp_path / "archives")
        made.loss(0)
        assert bring(shell, packed(code, tmp_path), tmp_path / "archives").files == 0


def test_of_a_large_file_that_changed_only_the_change_travels(tmp_path: Path) -> None:
    code = write(tmp_path / "code", {"a.py": "1"})
    data = bytearray(os.urandom(8_000_000))
    odd = code / "big 'weights'.bin"
    odd.write_bytes(data)
    said: list[str] = []
    with rented(shape.Shape(), tmp_path) as shell:
        login = shell._link.login
        way = Rsync(login, tmp_path / "known_hosts")

        def ship() -> int:
            cargo = packed(code, tmp_path)
            return bring(shell, cargo, tmp_path / "archives", said.append, way).bytes

        assert ship() > 8_000_000
        assert "1 large files sent by rsync" in said[0]
        data[4_000_000:4_000_004] = b"news"
        odd.write_bytes(data)
        assert ship() < 100_000
        odd.chmod(0o755)
        assert ship() < 100_000
        mode = "test -x \"app/big 'weights'.bin\""
        assert shell.run(mode, timeout_s=20).ok


def test_where_rsync_cannot_log_in_the_archive_goes(tmp_path: Path) -> None:
    code = write(tmp_path / "code", {"a.py": "1"})
    (code / "weights.bin").write_bytes(os.urandom(2_000_000))
    said: list[str] = []
    with rented(shape.Shape(), tmp_path) as shell:
        closed = dataclasses.replace(shell._link.login, addresses=(("127.0.0.1", 9),))
        way = Rsync(closed, tmp_path / "known_hosts")
        done = bring(shell, packed(code, tmp_path), tmp_path / "archives", said.append, way)
    assert "rsync gave up" in said[0]
    assert done.bytes > 2_000_000


def test_a_box_without_rsync_gets_the_archive(tmp_path: Path) -> None:
    code = write(tmp_path / "code", {"a.py": "1"})
    (code / "weights.bin").write_bytes(os.urandom(2_000_000))
    said: list[str] = []
    with rented(shape.Shape(without=("rsync",)), tmp_path) as shell:
        way = Rsync(shell._link.login, tmp_path / "known_hosts")
        bring(shell, packed(code, tmp_path), tmp_path / "archives", said.append, way)
    assert len(said) == 1
