"""The machines that a cloud rents out, as far as it needs to know: real boxes, or stubs.

The real ones are those of tests/boxes (tests/clouds/real.py).  A stub (tests/clouds/stub.py) only
writes down what was done to it, for tests of the cloud itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Spec:
    """What was bought.  `gpu` is a model of tests/boxes/fleet.py by its name there; "" is none."""

    gpu: str
    gpu_count: int
    disk_gb: int
    linked: bool = True  # NVLink between the GPUs
    user: str = "root"
    vm: bool = False  # a machine with an init of its own, not a container
    auto_tmux: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """What a container starts with: PID 1's environment, the onstart script, who may log in."""

    environment: Mapping[str, str]
    script: str
    keys: Sequence[str]


class Box(Protocol):
    """One running machine."""

    host: str
    port: int
    user: str

    def proxy_port(self) -> int:
        """A port on loopback through which its sshd is reached."""

    def start(self, how: Start) -> None:
        """Container start: environment, keys, script.  After each boot."""

    def authorize(self, keys: Sequence[str]) -> None:
        """These public keys, and no others, may log in."""

    def restart(self) -> None: ...
    def reboot(self) -> None: ...
    def halt(self) -> None: ...
    def boot(self) -> None: ...
    def destroy(self) -> None: ...

    def refuse_ssh(self) -> None: ...
    def refuse_proxy(self) -> None: ...
    def cut_off(self) -> None:
        """The cloud cannot be reached from the machine any more."""

    def traffic(self) -> tuple[int, int]:
        """Bytes that it has sent and received so far."""


class Boxes(Protocol):
    """Where machines come from."""

    def make(self, spec: Spec, api_port: int) -> Box:
        """A machine of this shape, running, its disk new.

        The cloud's API at 127.0.0.1:`api_port` is reached from it at the same address.
        """
