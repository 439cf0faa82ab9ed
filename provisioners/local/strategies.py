"""The ways to hold processes together, the surest first."""

import os
import shlex
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpurun.clock import Clock
from gpurun.errors import ProviderError
from provisioners.local import processes
from provisioners.local.processes import Process

MARK = "GPURUN_LABEL"
ENDING_S = 5.0
ROUNDS = 50  # of looking for processes that were forked while others were being killed
_BUS = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")


class CannotContain(ProviderError):
    """This strategy does not work on this machine."""


@dataclass(frozen=True, slots=True)
class Cage:
    """One box's processes: how they are held, and the process that holds them."""

    strategy: str
    label: str
    init: Process
    cgroup: str = ""


class Strategy(Protocol):
    @property
    def promise(self) -> str: ...

    def around(self, label: str) -> list[str]:
        """The command that starts another one inside."""

    def cage(self, name: str, label: str, launched: Process) -> Cage: ...

    def enter(self, cage: Cage) -> list[str]:
        """The command that runs another one inside later."""

    def end(self, cage: Cage, clock: Clock) -> list[Process]:
        """Kill all; returns who is left."""

    def end_script(self, cage: Cage) -> str:
        """The same as POSIX sh; status 0 means nobody is left."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """A pid namespace; `proc`: with a /proc of its own, so that `ps` in the box shows the box."""

    user: bool  # in a user namespace of its own, which needs no privilege
    proc: bool
    promise: str = "a pid namespace: every process of a box ends with it"

    def around(self, label: str) -> list[str]:
        user = ["--user", "--map-current-user"] if self.user else []
        # Slave: what the machine unmounts later must not stay mounted in here.
        proc = ["--mount-proc", "--propagation", "slave"] if self.proc else []
        return [_tool("unshare"), *user, "--pid", "--fork", *proc, "--"]

    def cage(self, name: str, label: str, launched: Process) -> Cage:
        init = [child for child in processes.table() if child.parent == launched.pid]
        if len(init) != 1:
            raise CannotContain("its init cannot be told")
        return Cage(name, label, init[0])

    def enter(self, cage: Cage) -> list[str]:
        user = ["--user", "--preserve-credentials"] if self.user else []
        mount = ["--mount"] if self.proc else []
        return [_tool("nsenter"), "--target", str(cage.init.pid), *user, "--pid", *mount, "--"]

    def end(self, cage: Cage, clock: Clock) -> list[Process]:
        return processes.kill([cage.init], ENDING_S, clock) if processes.alive(cage.init) else []

    def end_script(self, cage: Cage) -> str:
        return f"""\
{lives_script(cage.init)}
lives || exit 0
kill -KILL {cage.init.pid} || :
for second in 1 2 3 4 5; do lives || exit 0; sleep 1; done
exit 1
"""


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice of the user's systemd: each command is a scope in it, cgroup.kill ends them all."""

    promise: str = "a systemd slice: every process of a box ends by cgroup.kill"

    def around(self, label: str) -> list[str]:
        return [
            *(_tool("systemd-run"), "--user", "--scope", "--quiet", "--collect"),
            *(f"--slice={_slice(label)}", "--"),
        ]

    def cage(self, name: str, label: str, launched: Process) -> Cage:
        lines = Path(f"/proc/{launched.pid}/cgroup").read_text().splitlines()
        scope = next((line[3:] for line in lines if line.startswith("0::")), "/")
        for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
            directory = Path(f"{mount}{scope}").parent
            if directory.name == _slice(label) and os.access(directory / "cgroup.kill", os.W_OK):
                return Cage(name, label, launched, str(directory))
        raise CannotContain("no cgroup.kill in its slice")

    def enter(self, cage: Cage) -> list[str]:
        bus = [f"{name}={value}" for name, value in own_environment().items() if name != "PATH"]
        forget = [word for name in _BUS for word in ("-u", name)]
        return ["env", *bus, *self.around(cage.label), "env", *forget]

    def end(self, cage: Cage, clock: Clock) -> list[Process]:
        found: list[Process] = []
        for _ in range(ROUNDS):
            # A command that is just being started is marked before it is in the slice.
            found = _members(cage.cgroup) + _bearing(cage.label)
            with suppress(OSError):  # the slice vanishes with its last process
                (Path(cage.cgroup) / "cgroup.kill").write_text("1")
            left = processes.kill(found, ENDING_S, clock)
            if left or not found:
                return left
        return found

    def end_script(self, cage: Cage) -> str:
        directory = shlex.quote(cage.cgroup)
        return f"""\
cd {directory} 2>/dev/null || exit 0
echo 1 > cgroup.kill || :
for second in 1 2 3 4 5; do grep -q '^populated 1' cgroup.events || exit 0; sleep 1; done
exit 1
"""


@dataclass(frozen=True, slots=True)
class Marked:
    """Whoever bears the box's mark in its environment, their children, their sessions."""

    promise: str = (
        "best effort, by a mark in the environment: a process that clears its environment "
        "and leaves its parent and its session is missed"
    )

    def around(self, label: str) -> list[str]:
        return []

    def cage(self, name: str, label: str, launched: Process) -> Cage:
        return Cage(name, label, launched)

    def enter(self, cage: Cage) -> list[str]:
        return []

    def end(self, cage: Cage, clock: Clock) -> list[Process]:
        return self.end_all(cage.label, clock)

    def end_all(self, label: str, clock: Clock) -> list[Process]:
        found: list[Process] = []
        for _ in range(ROUNDS):
            found = _bearing(label)
            left = processes.kill(found, ENDING_S, clock)
            if left or not found:
                return left
        return found

    def end_script(self, cage: Cage) -> str:
        mark = shlex.quote(f"{MARK}={cage.label}")
        return f"""\
bearing() {{
  if [ -d /proc/self ]; then
    for environ in /proc/[0-9]*/environ; do
      {{ tr '\\000' '\\n' < "$environ" | grep -qxF {mark} && echo "$environ"; }} 2>/dev/null
    done | tr -cd '0-9\\n'
  else
    ps -AEww -o pid=,command= | grep -F {mark} | grep -v grep | awk '{{print $1}}'
  fi
}}
for second in 1 2 3 4 5; do
  found=$(bearing | grep -vx "$$" || :)
  [ -n "$found" ] || exit 0
  kill -KILL $found 2>/dev/null || :
  sleep 1
done
exit 1
"""


def lives_script(process: Process) -> str:
    """A sh function `lives`: whether this very process is there, as far as sh can tell."""
    return f"""\
lives() {{
  [ -d /proc/self ] || {{ kill -0 {process.pid} 2>/dev/null; return; }}
  set -- $(sed 's/.*) //' /proc/{process.pid}/stat 2>/dev/null)
  [ "${{20:-}}" = {shlex.quote(process.start)} ] && [ "$1" != Z ] && [ "$1" != X ]
}}"""


def _bearing(label: str) -> list[Process]:
    table = [process for process in processes.table() if not process.dead]
    ours = processes.marked(MARK, label)
    # A session is ours if its leader is: `gpurun ssh` runs a marked shell in the user's own.
    sessions = {p.session for p in table if p.pid in ours and p.pid == p.session}
    ours |= {p.pid for p in table if p.session in sessions}
    while more := {p.pid for p in table if p.parent in ours and p.pid not in ours}:
        ours |= more
    return [process for process in table if process.pid in ours - {os.getpid()}]


def _members(cgroup: str) -> list[Process]:
    pids = []
    for directory, _, _ in os.walk(cgroup):
        with suppress(OSError):  # a scope ends while it is read
            pids += Path(directory, "cgroup.procs").read_text().split()
    return [p for pid in pids if (p := processes.find(int(pid))) and not p.dead]


def _slice(label: str) -> str:
    return label.replace("-", "_") + ".slice"  # a dash would nest it


def _tool(name: str) -> str:
    if (path := shutil.which(name)) is None:
        raise CannotContain(f"{name} is not installed")
    return path


def own_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", *_BUS) if name in os.environ}
