"""The setup on boxes that lack things: no venv module, no pip, no rights, another torch."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.phases import Facts
from gpurun.phases import pytorch as torches
from gpurun.phases.setup import INSTALL, PYTHON_FILE, apt_text, uv_text, venv_text
from gpurun.shell import Result
from gpurun.shell.local import LocalShell
from tests.boxes import registry

FACTS = Facts(bundle_sha256="ab12", label="l", run_id="r", torch_cpu_index="")
OURS = sys.executable  # has torch, pip, venv


class Box:
    """A box whose commands are those of `bin`, then a few of this machine's."""

    tools = "sh cat mkdir rm mv cp ln ls head tail sed grep cut tr id env echo printf test date"
    tools += " dirname basename readlink uname sleep true false chmod find sort wc"

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.bin = folder / "bin"
        self.root.mkdir()
        self.bin.mkdir()
        for tool in self.tools.split():
            for place in ("/usr/bin", "/bin"):
                if (Path(place) / tool).exists():
                    (self.bin / tool).symlink_to(Path(place) / tool)
                    break
        self.env = {
            **registry.environment(),
            "PATH": str(self.bin),
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "CALLS": str(folder / "calls"),
        }

    def command(self, name: str, text: str) -> None:
        """A command that notes how it was called."""
        file = self.bin / name
        file.unlink(missing_ok=True)
        file.write_text(f'#!/bin/sh\necho "{name} $*" >> "$CALLS"\n{text}\n')
        file.chmod(0o755)

    def step(self, text: str) -> Result:
        return LocalShell(self.root, env=self.env).run(f"set -e\n{text}", timeout_s=120)

    @property
    def calls(self) -> list[str]:
        file = Path(self.env["CALLS"])
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


# apt.


def test_packages_that_are_there_are_not_asked_of_apt(box: Box) -> None:
    box.command("dpkg-query", "echo installed")
    box.command("apt-get", "exit 1")
    assert box.step(apt_text(["git", "tmux"])).ok
    assert not [call for call in box.calls if call.startswith("apt-get")]


@pytest.mark.parametrize("user", ["root", "ubuntu"])
def test_packages_are_installed_by_root_and_by_a_user_with_sudo(box: Box, user: str) -> None:
    box.command("dpkg-query", "exit 1")
    box.command("apt-get", "exit 0")
    box.command("sudo", 'shift; "$@"')
    box.command("id", f'[ "$1" = -un ] && echo {user} || echo {0 if user == "root" else 1000}')
    done = box.step(apt_text(["git"]))
    assert done.ok, done.output
    update, install = [call for call in box.calls if call.startswith("apt-get")]
    assert "update" in update and install.endswith("--no-install-recommends git")
    assert "DPkg::Lock::Timeout=300" in install
    sudo = [call for call in box.calls if call.startswith("sudo -n")]
    assert bool(sudo) is (user != "root")


def test_a_user_without_rights_is_told_what_to_do(box: Box) -> None:
    box.command("dpkg-query", "exit 1")
    box.command("apt-get", "exit 0")
    box.command("sudo", "exit 1")
    box.command("id", '[ "$1" = -un ] && echo ada || echo 1000')
    done = box.step(apt_text(["git"]))
    assert done.exited == 1
    assert "ada may not install Debian packages" in done.output
    assert not [call for call in box.calls if call.startswith("apt-get")]


def test_a_box_without_apt_says_so(box: Box) -> None:
    done = box.step(apt_text(["git"]))
    assert done.exited == 1
    assert "this box has no apt-get: put git into the image" in done.output


# The virtual environment.


def python(box: Box, name: str = "python3", refuses: str = "-m venv") -> None:
    """A Python of this machine that refuses one of its modules, as Debian's do without them."""
    box.command(name, f'case "$*" in "{refuses}"*) exit 1 ;; esac\nexec {OURS} "$@"')


def test_a_box_with_everything_needs_nothing_else(box: Box) -> None:
    python(box, refuses="nothing")
    assert box.step(venv_text(None)).ok
    assert (box.root / PYTHON_FILE).read_text() == f"{box.bin}/python3\n"
    calls = len(box.calls)
    assert box.step(venv_text(None)).ok  # it works, so nothing is made
    assert len(box.calls) == calls


def test_a_broken_environment_is_made_anew(box: Box) -> None:
    python(box, refuses="nothing")
    (box.root / "venv" / "bin").mkdir(parents=True)
    (box.root / "venv" / "bin" / "python").symlink_to("/nowhere")
    assert box.step(venv_text(None)).ok
    assert box.step("venv/bin/python -m pip --version").ok


def test_without_a_venv_module_apt_gives_it(box: Box, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    box.command(
        "python3",
        f'case "$*" in "-m venv"*) [ -f {ready} ] || exit 1 ;; esac\nexec {OURS} "$@"',
    )
    box.command("apt-get", f'case "$*" in *install*python3-venv) : > {ready} ;; esac')
    box.command("id", "echo 0")
    done = box.step(venv_text(None))
    assert done.ok, done.output
    assert [call for call in box.calls if call.endswith("python3-venv")]


def test_without_venv_uv_or_apt_the_registry_helps(box: Box) -> None:
    python(box)
    done = box.step(venv_text(None))
    assert done.ok, done.output
    assert box.step("venv/bin/python -m pip --version").ok


def test_where_nothing_helps_one_line_says_what_would(box: Box) -> None:
    python(box, refuses="-m ")
    done = box.step(venv_text(None))
    assert done.exited == 1
    assert "no virtual environment can be made here: add python3-venv to setup.apt" in done.output
    assert not (box.root / "venv").exists()


def test_a_box_without_python_says_so(box: Box) -> None:
    box.command("python3", "exit 1")  # as one of 3.8 answers to the question
    done = box.step(venv_text(None))
    assert done.exited == 1
    assert "no Python of 3.10 or newer: add python3 to setup.apt" in done.output


def test_the_interpreter_with_the_pinned_torch_is_preferred(box: Box) -> None:
    box.command("python3", 'exec /usr/bin/python3 "$@"')
    box.command("python3.11", f'exec {OURS} "$@"')
    done = box.step(venv_text("2.13.0"))
    assert done.ok, done.output
    assert (box.root / PYTHON_FILE).read_text() == f"{box.bin}/python3.11\n"


# pip, uv and torch, in an environment that is there.


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Box:
    box = Box(tmp_path_factory.mktemp("made"))
    box.command("python3", f'exec {OURS} "$@"')
    done = box.step(venv_text("2.13.0"))
    assert done.ok, done.output
    return box


@pytest.fixture
def ready(made: Box) -> Iterator[Box]:
    """Without uv, and without the torch of the image."""
    env = dict(made.env)
    yield made
    made.env = env
    if (made.root / "venv" / "bin" / "uv").exists():
        made.step("venv/bin/python -m pip uninstall -qy uv; rm -f venv/bin/uv")
    for link in made.root.glob("venv/lib/*/site-packages/gpurun-host-torch.pth"):
        link.unlink()


def only_the_registry(box: Box) -> None:
    box.env = {k: v for k, v in box.env.items() if not k.startswith(("PIP_", "UV_"))}
    box.env["PIP_CONFIG_FILE"] = os.devnull


def test_uv_installs_where_pip_has_no_index_of_its_own(ready: Box) -> None:
    only_the_registry(ready)
    said = ready.step(uv_text())
    assert said.output.startswith("uv 0."), said.output
    done = ready.step(f"{INSTALL}install iniconfig==2.0.0")
    assert done.ok, done.output
    assert "Installed 1 package" in done.output  # uv's words
    assert ready.step("venv/bin/python -c 'import iniconfig'").ok


def test_what_uv_cannot_install_pip_tries(ready: Box) -> None:
    uv = ready.root / "venv" / "bin" / "uv"
    uv.write_text("#!/bin/sh\nexit 2\n")
    uv.chmod(0o755)
    done = ready.step(f"{INSTALL}install iniconfig==2.0.0")
    assert done.ok, done.output
    assert "uv could not install this; pip tries" in done.output


def test_pip_installs_where_it_has_indexes_of_its_own(ready: Box, tmp_path: Path) -> None:
    ready.env["PIP_FIND_LINKS"] = str(tmp_path)
    assert ready.step(uv_text()).output == "pip has indexes of its own here: it installs\n"


def test_a_box_that_cannot_have_uv_uses_pip(ready: Box) -> None:
    only_the_registry(ready)
    ready.env |= {"PIP_RETRIES": "0", "https_proxy": "http://127.0.0.1:9"}
    assert ready.step(uv_text()).output.endswith("uv cannot be had here: pip installs\n")


def test_the_torch_of_the_image_is_used_if_it_is_the_pinned_one(ready: Box) -> None:
    done = ready.step(INSTALL + torches.install_text("2.13.0", "cpu", FACTS))
    assert done.ok, done.output
    said = ready.step(torches.check_text("cpu"))
    assert said.output.startswith("torch 2.13.0")
    assert "pip" not in done.output


def test_another_torch_on_the_image_is_not_taken_for_the_pinned_one(ready: Box) -> None:
    ready.env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": os.devnull}
    done = ready.step(INSTALL + torches.install_text("2.4.0", "cpu", FACTS))
    assert not done.ok
    assert "torch==2.4.0" in done.output


def test_a_torch_for_the_cpu_is_no_torch_for_the_gpu(ready: Box) -> None:
    ready.env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": os.devnull}
    assert not ready.step(INSTALL + torches.install_text("2.13.0", "cuda", FACTS)).ok
    assert ready.step(torches.image_text()).ok  # no version pinned: the image's own
    said = ready.step(torches.check_text("cuda"))
    assert said.exited == 1
    assert "this torch is built for the CPU: say `setup.device: cpu`" in said.output


def test_an_image_without_torch_is_no_error_where_none_is_pinned(ready: Box) -> None:
    ready.command("bare", 'exec /usr/bin/python3 "$@"')
    named = (ready.root / PYTHON_FILE).read_text()
    (ready.root / PYTHON_FILE).write_text(f"{ready.bin}/bare\n")
    try:
        assert ready.step(torches.image_text()).ok
    finally:
        (ready.root / PYTHON_FILE).write_text(named)
