"""The guards beside the keeper: armed, read back, disarmed.

A guard is what it was read to hold, never what it was told (protocol I15).
"""

import shlex

from gpurun import fuse
from gpurun.clock import Clock
from gpurun.errors import PhaseFailed, ProviderError
from gpurun.fuse import FuseState
from gpurun.model import Attempt, Timer
from gpurun.provider import OverSsh, OwnFuse, Provisioner
from gpurun.shell import Shell
from gpurun.store import Journal


class OnBox:
    """The place of a fuse that runs on the box itself, reached by SSH."""

    def __init__(self, cloud: OverSsh, shell: Shell) -> None:
        self._cloud = cloud
        self._shell = shell

    def fuse_shell(self, instance_id: str) -> Shell:
        return self._shell

    def fuse_home(self, instance_id: str) -> str:
        return f"{self._cloud.login(instance_id).root}/.gpurun/fuse"

    def inside(self, instance_id: str, text: str) -> str:
        return f"(cd {shlex.quote(self._cloud.login(instance_id).root)} && {{\n{text}\n}})"

    def self_destroy(self, instance_id: str) -> str:
        return self._cloud.self_destroy(instance_id)


class Fuse:
    """The fuse of one box: armed, read back, disarmed."""

    def __init__(self, cloud: OwnFuse, attempt: Attempt, journal: Journal, clock: Clock) -> None:
        assert attempt.instance_id is not None
        self._cloud = cloud
        self._id = attempt.instance_id
        self._label = attempt.label
        self._journal = journal
        self._clock = clock

    def arm(self, timer: Timer, terminate: str) -> FuseState | None:
        """Hand it a timer; `terminate` is sh text that stops the training inside the box."""
        return self._noted(
            fuse.arm(
                self._cloud.fuse_shell(self._id),
                self._cloud.fuse_home(self._id),
                timer,
                self._clock,
                self_destroy=self._cloud.self_destroy(self._id),
                terminate=self._cloud.inside(self._id, terminate),
            )
        )

    def read(self) -> FuseState | None:
        shell, home = self._cloud.fuse_shell(self._id), self._cloud.fuse_home(self._id)
        return self._noted(fuse.read_back(shell, home))

    def require(self, timer: Timer) -> None:
        """A5: no launch while the fuse may hold an older timer than this one.

        One that does not hold this timer is disarmed, and that is read back.
        """
        state = self.read()
        if state is None or not state.holds(timer.seq):
            self.disarm()
            if self._journal.timers.guard_state(self._label, "fuse") != "disarmed":
                raise PhaseFailed(
                    "the fuse can be neither moved to the run timer nor disarmed: it may end the "
                    "training at the setup hour. Training was not launched."
                )

    def disarm(self) -> None:
        """After the proof of death: it has nothing left to end."""
        done = fuse.disarm(self._cloud.fuse_shell(self._id), self._cloud.fuse_home(self._id))
        self._journal.timers.guard(self._label, "fuse", "disarmed" if done else "disarm_due")

    def _noted(self, state: FuseState | None) -> FuseState | None:
        timers = self._journal.timers
        if state is None or not state.holds(state.seq):
            timers.guard(self._label, "fuse", "unknown")
        else:
            timers.guard(self._label, "fuse", "armed", seq=state.seq, ends_at=state.ends_at)
        return state


def fuse_of(
    cloud: Provisioner, attempt: Attempt, journal: Journal, clock: Clock, shell: Shell
) -> Fuse | None:
    """None where there is no box yet, or its provider has no place for a fuse.

    `shell` is one of the box, for a fuse that runs on it.
    """
    if attempt.instance_id is None:
        return None
    if isinstance(cloud, OwnFuse):
        return Fuse(cloud, attempt, journal, clock)
    if isinstance(cloud, OverSsh):
        return Fuse(OnBox(cloud, shell), attempt, journal, clock)
    return None


def disarm_all(cloud: Provisioner, attempt: Attempt, journal: Journal, clock: Clock) -> str:
    """Best effort, after the box is proven gone; returns what went wrong, else nothing.

    A fuse that ran on the box went with it.
    """
    try:
        if isinstance(cloud, OwnFuse) and attempt.instance_id is not None:
            Fuse(cloud, attempt, journal, clock).disarm()
        elif isinstance(cloud, OverSsh):
            journal.timers.guard(attempt.label, "fuse", "disarmed")
    except (ProviderError, OSError) as error:
        return str(error)
    return ""
