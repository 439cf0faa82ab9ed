"""Machines that are not there, for tests of the cloud itself: they write down what is done."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.clouds.boxes import Spec, Start


@dataclass(slots=True)
class StubBox:
    spec: Spec
    host: str
    user: str
    port: int = 22
    up: bool = True
    done: list[str] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    keys: tuple[str, ...] = ()
    bytes_up: int = 0
    bytes_down: int = 0

    def proxy_port(self) -> int:
        return 40022

    def start(self, how: Start) -> None:
        self.starts.append(how)
        self.keys = tuple(how.keys)

    def authorize(self, keys: Sequence[str]) -> None:
        self.keys = tuple(keys)

    def restart(self) -> None:
        self.done.append("restart")

    def reboot(self) -> None:
        self.done.append("reboot")

    def halt(self) -> None:
        self.done.append("halt")
        self.up = False

    def boot(self) -> None:
        self.done.append("boot")
        self.up = True

    def destroy(self) -> None:
        self.done.append("destroy")
        self.up = False

    def refuse_ssh(self) -> None:
        self.done.append("refuse ssh")

    def refuse_proxy(self) -> None:
        self.done.append("refuse proxy")

    def cut_off(self) -> None:
        self.done.append("cut off")

    def traffic(self) -> tuple[int, int]:
        return self.bytes_up, self.bytes_down


class StubBoxes:
    """`made` are all, in the order in which they were made."""

    def __init__(self) -> None:
        self.made: list[StubBox] = []

    def make(self, spec: Spec, api_port: int) -> StubBox:
        box = StubBox(spec, f"192.0.2.{len(self.made) + 1}", spec.user)
        self.made.append(box)
        return box
