"""A host of the user's own: a real sshd box, and the provisioner that runs on it."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from gpurun.provider import Login
from gpurun.shell.fabric import FabricShell
from provisioners.ssh import Ssh
from tests.boxes import Box, box
from tests.boxes.shape import H100X4


@pytest.fixture
def host() -> Iterator[Box]:
    with box(H100X4) as machine:
        yield machine


@pytest.fixture
def ssh_to(tmp_path: Path) -> Callable[..., Ssh]:
    """Another controller, with its own pinned keys, each time it is called with another name."""

    def made(machine: Box, controller: str = "one", **settings: object) -> Ssh:
        known_hosts = tmp_path / controller

        def open_shell(login: Login) -> FabricShell:
            return FabricShell(login, known_hosts)

        return Ssh(
            f"ssh:{machine.user}@{machine.host}:{machine.port}",
            machine.user,
            (machine.host, machine.port),
            open_shell,
            key=machine.key,
            **{"usd_per_hour": Decimal("1.25"), **settings},
        )

    return made
