"""What holds the processes of a box together, so that all of them can be ended.

A box has an init process.  Best, it is process 1 of a pid namespace: the kernel ends whatever was
started in there with it, however often it forked and whatever it did to its environment.  Else a
systemd slice, ended by cgroup.kill.  Else a mark in the environment, which is best effort.
What works is found out by doing it: a container or a hardened kernel refuses in many ways.
"""

import os
import select
import subprocess
from collections.abc import Sequence
from typing import IO

from provisioners.local import processes
from provisioners.local.strategies import (
    MARK,
    Cage,
    CannotContain,
    Marked,
    Namespace,
    Slice,
    Strategy,
    own_environment,
)

STRATEGIES: dict[str, Strategy] = {
    "pid-namespace": Namespace(user=False, proc=True),
    "user-namespace": Namespace(user=True, proc=True),
    "pid-namespace-shared-proc": Namespace(user=False, proc=False),
    "user-namespace-shared-proc": Namespace(user=True, proc=False),
    "systemd": Slice(),
    "environment": Marked(),
}
BEST_EFFORT = "environment"

STARTING_S = 10.0

# Reaps what it adopts (a waiting sh does; one that ignores SIGCHLD by `trap` need not), and ends
# when its maker dies before having written down that the box exists.
_INIT = """\
echo ready
read -r word && [ "$word" = go ] || exit 1
exec </dev/null >/dev/null 2>&1
while :; do sleep 2147483647; done
"""
_LAUNCH = 'exec 3<&0; "$@" <&3 3<&- & echo $!'  # its parent exits, so it is nobody's child


class Launch:
    """A box's init, waiting for the word that the box is on record."""

    def __init__(self, cage: Cage, word: IO[bytes]) -> None:
        self.cage = cage
        self._word = word

    def go(self) -> None:
        self._word.write(b"go\n")
        self._word.close()

    def abort(self) -> None:
        self._word.close()


def launch(names: Sequence[str], label: str) -> Launch:
    """The first strategy that really works."""
    refusals = []
    for name in names:
        try:
            return _launch(name, label)
        except (CannotContain, OSError) as error:
            refusals.append(f"{name}: {error}")
    raise CannotContain("; ".join(refusals))


def _launch(name: str, label: str) -> Launch:
    strategy = STRATEGIES[name]
    process = subprocess.Popen(
        ["sh", "-c", _LAUNCH, "sh", *strategy.around(label), "sh", "-c", _INIT],
        env=own_environment() | {MARK: label},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        with process.stdout:
            pid = _wait_until_ready(process.stdout.fileno())
        launched = processes.find(pid)
        if launched is None:
            raise CannotContain("its init died")
        return Launch(strategy.cage(name, label, launched), process.stdin)
    except BaseException:
        process.stdin.close()  # ends the init, if there is one
        raise
    finally:
        process.wait()


def _wait_until_ready(descriptor: int) -> int:
    said = b""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while True:
        words = said.decode(errors="replace").splitlines()
        pids = [int(word) for word in words if word.isdecimal()]
        if pids and "ready" in words and said.endswith(b"\n"):
            return pids[0]
        data = os.read(descriptor, 4096) if poll.poll(STARTING_S * 1000) else b""
        if not data:
            complaint = [word for word in words if word != "ready" and not word.isdecimal()]
            raise CannotContain(" ".join(complaint) or "no answer")
        said += data
