"""The processes of this machine: who they are, and how to end one that is proven ours.

A pid alone proves nothing, since pids are reused.  Pid and start time, within one boot, do; and a
pidfd keeps naming the process that was looked at, whatever happens to its number.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpurun.clock import Clock

PROC = Path("/proc")
_PF_EXITING = 0x4


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    start: str  # clock ticks since boot on Linux, a date elsewhere; only ever compared
    parent: int
    session: int
    dead: bool = False  # a zombie: it runs nothing and cannot be signalled
    exiting: bool = False  # the init of a namespace, while the kernel ends the others for it

    def __str__(self) -> str:
        return str(self.pid)


def find(pid: int) -> Process | None:
    """The process with this pid, now."""
    if not _has_proc():
        return next((process for process, _ in listed_by_ps() if process.pid == pid), None)
    try:
        stat = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, parent, _, session, *rest = stat.rpartition(")")[2].split()
    return Process(
        pid,
        rest[15],
        int(parent),
        int(session),
        dead=state in "ZX",
        exiting=bool(int(rest[2]) & _PF_EXITING),
    )


def alive(process: Process) -> bool:
    """Whether this very process is still there: same pid, same start time."""
    now = find(process.pid)
    return now is not None and not now.dead and now.start == process.start


def runs(process: Process) -> bool:
    """Whether it is there and not on its way out."""
    now = find(process.pid)
    return now is not None and not now.dead and not now.exiting and now.start == process.start


def table() -> list[Process]:
    if not _has_proc():
        return [process for process, _ in listed_by_ps()]
    return [process for pid in _pids() if (process := find(pid))]


def marked(variable: str, value: str) -> set[int]:
    """The pids that were started with this variable in their environment."""
    wanted = f"{variable}={value}"
    if not _has_proc():
        return {process.pid for process, words in listed_by_ps() if wanted in words.split()}
    found = set()
    for pid in _pids():
        with suppress(OSError):  # another user's, or gone by now
            if wanted.encode() in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found


def kill(processes: Iterable[Process], within_s: float, clock: Clock) -> list[Process]:
    """SIGKILL these very processes; returns those that live on after `within_s`."""
    sent = [(process, _sigkill(process)) for process in processes]
    left: list[Process] = []
    for process, descriptor in sent:
        patience_s = 0.0 if left else within_s  # spent on the first that will not die
        if descriptor is not None:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            ended = bool(poll.poll(patience_s * 1000))
            os.close(descriptor)
        else:  # a kernel without pidfd
            waited_s = 0.0
            while not (ended := not alive(process)) and waited_s < patience_s:
                clock.sleep(0.01)
                waited_s += 0.01
        if not ended:
            left.append(process)
    return left


def _sigkill(process: Process) -> int | None:
    """Send it; returns a pidfd to wait on, where the kernel has them."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    except (AttributeError, OSError):
        descriptor = None
    with suppress(ProcessLookupError, PermissionError):  # not ours: seen as left over
        if not alive(process):
            pass
        elif descriptor is None:
            os.kill(process.pid, signal.SIGKILL)
        else:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            return descriptor
    if descriptor is not None:
        os.close(descriptor)
    return None


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdecimal()]  # noqa: PTH208


def _has_proc() -> bool:
    return (PROC / "self" / "stat").exists()


def listed_by_ps() -> Iterator[tuple[Process, str]]:
    """Where there is no /proc (macOS): every process, with its command and environment."""
    shown = ["-AEww"] if sys.platform == "darwin" else ["axeww"]
    fields = "pid=,ppid=,sess=,stat=,lstart=,command="
    listing = subprocess.run(
        ["ps", *shown, "-o", fields], env=os.environ | {"LC_ALL": "C"}, capture_output=True,
        text=True, errors="replace", check=True,
    ).stdout  # fmt: skip
    for line in listing.splitlines():
        pid, parent, session, stat, *rest = line.split(maxsplit=9)
        start, command = " ".join(rest[:5]), " ".join(rest[5:])
        number = int(session, 16) if session.startswith("0x") else int(session or 0)
        yield Process(int(pid), start, int(parent), number, dead="Z" in stat), command
