"""How a box is reached: the provider's own shell, else SSH."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpurun.errors import ProviderError, UsageError
from gpurun.places import Places
from gpurun.provider import Login
from gpurun.reach import shell_of
from gpurun.shell.fabric import FabricShell
from gpurun.shell.local import LocalShell
from tests.boxes import Box, box


class WithShell:
    name = "own"

    def shell(self, instance_id: str) -> LocalShell:
        return LocalShell(Path("/"))


class WithLogin:
    name = "over-ssh"

    def __init__(self, rented: Box | None = None) -> None:
        self._rented = rented

    def login(self, instance_id: str) -> Login:
        if self._rented is None:
            raise ProviderError(f"no address of {instance_id} yet")
        made = self._rented
        return Login(instance_id, made.user, ((made.host, made.port),), "/workspace", made.key)

    def self_destroy(self, instance_id: str) -> str:
        return ":"


class WithNeither:
    name = "mute"


def test_a_providers_own_shell_is_taken(tmp_path: Path) -> None:
    assert isinstance(shell_of(WithShell(), "i-1", Places(tmp_path)), LocalShell)


@pytest.mark.box
def test_a_box_over_ssh_is_pinned_in_the_state_directory(tmp_path: Path) -> None:
    with box() as rented:
        shell = shell_of(WithLogin(rented), "i-1", Places(tmp_path))
        assert isinstance(shell, FabricShell)
        assert list(tmp_path.iterdir()) == []  # nothing is asked of the box yet
        assert shell.run("pwd", timeout_s=10).output == "/workspace\n"
        assert (Places(tmp_path).known_hosts / "i-1").read_text() == f"i-1 {rented.host_key}\n"


def test_a_box_without_an_address_is_the_providers_error(tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match="no address of i-1 yet"):
        shell_of(WithLogin(), "i-1", Places(tmp_path))


def test_a_provider_that_offers_no_way_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="mute"):
        shell_of(WithNeither(), "i-1", Places(tmp_path))


def test_fabric_is_loaded_only_for_a_box_over_ssh() -> None:
    program = "import sys, gpurun.reach; sys.exit('paramiko' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
