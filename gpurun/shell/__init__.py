"""The second port: running commands and moving files on a box.

Exit code -1 means "connection lost, outcome unknown"; it never means "failed".

    local.py    a shell on this machine
    lines.py    all lines of a command that may be sent again
    fabric.py   a shell over SSH; imported only by who opens one, for it is slow to import
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

UNKNOWN_OUTCOME = -1
TIMED_OUT = 124  # as coreutils' timeout(1) reports it
KEPT_CHARS = 1_000_000  # of a command's output: its end


@dataclass(frozen=True, slots=True)
class Result:
    """What a command did: its exit code and what it printed, both streams in one order."""

    exited: int
    output: str

    @property
    def ok(self) -> bool:
        return self.exited == 0

    def tail(self, lines: int = 10) -> str:
        return "\n".join(self.output.splitlines()[-lines:])


class Shell(Protocol):
    """Commands run by `sh` in the box's root directory; paths are relative to it."""

    def run(
        self,
        command: str,
        *,
        timeout_s: float,
        stdin: str = "",
        on_line: Callable[[str], None] | None = None,
    ) -> Result:
        """Run to the end or to the timeout (exit 124, everything it started is killed)."""

    def put(self, source: Path, target: str) -> None:
        """Copy a file onto the box, atomically; OSError when it did not arrive."""

    def get(self, source: str, target: Path) -> None:
        """Copy a file from the box to exactly `target`; OSError when it did not arrive."""


@runtime_checkable
class Connects(Protocol):
    """A shell that can say why it cannot be reached (gpurun/shell/trouble.py)."""

    def connect(self) -> None: ...
