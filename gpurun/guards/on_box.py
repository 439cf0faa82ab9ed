"""The fuse of one box, wherever it runs: armed, rehearsed, read back, disarmed."""

import shlex
from functools import cached_property

from gpurun import fuse
from gpurun.clock import Clock
from gpurun.errors import PhaseFailed
from gpurun.fuse import FuseState
from gpurun.model import Attempt, Timer
from gpurun.provider import FuseFromStart, KeyOnBox, OverSsh, OwnFuse, Provisioner, Rehearsal
from gpurun.shell import Shell
from gpurun.store import Journal

NAME = "fuse"
ASK_WITHIN_S = 90.0


class OnBox:
    """The place of a fuse that runs on the box itself, reached by SSH."""

    def __init__(self, cloud: OverSsh, instance_id: str, shell: Shell) -> None:
        self._cloud = cloud
        self._id = instance_id
        self._shell = shell

    @cached_property
    def _root(self) -> str:
        return self._cloud.login(self._id).root

    def fuse_shell(self, instance_id: str) -> Shell:
        return self._shell

    def fuse_home(self, instance_id: str) -> str:
        return _home(self._root)

    def inside(self, instance_id: str, text: str) -> str:
        return _inside(self._root, text)

    def self_destroy(self, instance_id: str) -> str:
        return self._cloud.self_destroy(instance_id)


class Fuse:
    """The fuse of one box."""

    def __init__(
        self,
        place: OwnFuse,
        attempt: Attempt,
        journal: Journal,
        clock: Clock,
        cloud: Provisioner | None = None,
    ) -> None:
        assert attempt.instance_id is not None
        self._place = place
        self._id = attempt.instance_id
        self._label = attempt.label
        self._journal = journal
        self._clock = clock
        self._cloud = cloud

    def arm(self, timer: Timer, terminate: str) -> FuseState | None:
        """Hand it a timer; `terminate` is sh text that stops the training inside the box."""
        self._hand_key()
        return self._noted(
            fuse.arm(
                self._place.fuse_shell(self._id),
                self._place.fuse_home(self._id),
                timer,
                self._clock,
                self_destroy=self._place.self_destroy(self._id),
                terminate=self._place.inside(self._id, terminate),
            )
        )

    def rehearse(self) -> bool:
        """Whether its word to the provider would be heard; without, it does not end the bill."""
        if not isinstance(self._cloud, Rehearsal):
            return True
        text = self._cloud.rehearsal(self._id)
        heard = self._place.fuse_shell(self._id).run(text, timeout_s=ASK_WITHIN_S).ok
        self._journal.timers.guard_ends_bill(self._label, NAME, heard)
        return heard

    def read(self) -> FuseState | None:
        """An answer that was overtaken by `gpurun extend` on its way is asked for once more."""
        shell, home = self._place.fuse_shell(self._id), self._place.fuse_home(self._id)
        state = fuse.read_back(shell, home)
        if state is not None and state.seq < self._seq_read():
            state = fuse.read_back(shell, home)
        return self._noted(state)

    def require(self, timer: Timer) -> None:
        """A5: no launch while the fuse may hold an older timer than this one.

        One that does not hold this timer is disarmed, and that is read back.
        """
        state = self.read()
        if state is None or not state.holds(timer.seq):
            self.disarm()
            if self._journal.timers.guard_state(self._label, NAME) != "disarmed":
                raise PhaseFailed(
                    "the fuse can be neither moved to the run timer nor disarmed: it may end the "
                    "training at the setup hour. Training was not launched."
                )

    def disarm(self) -> None:
        """After the proof of death: it has nothing left to end."""
        done = fuse.disarm(self._place.fuse_shell(self._id), self._place.fuse_home(self._id))
        self._journal.timers.guard(self._label, NAME, "disarmed" if done else "disarm_due")

    def _hand_key(self) -> None:
        """Through stdin onto tmpfs, and anew whenever it is armed: a reboot empties tmpfs."""
        if not isinstance(self._cloud, KeyOnBox) or not (key := self._cloud.box_key()):
            return
        to = shlex.quote(self._cloud.box_key_file(self._id))
        put = self._place.fuse_shell(self._id).run(
            f"umask 077; cat > {to}.new && mv -f {to}.new {to}", timeout_s=ASK_WITHIN_S, stdin=key
        )
        self._journal.timers.guard_ends_bill(self._label, NAME, put.ok)

    def _seq_read(self) -> int:
        words = self._journal.timers.guards_of(self._label)
        return max((word.seq_read for word in words if word.name == NAME), default=0)

    def _noted(self, state: FuseState | None) -> FuseState | None:
        timers = self._journal.timers
        if state is None or not state.holds(state.seq):
            timers.guard(self._label, NAME, "unknown")
        else:
            timers.guard(self._label, NAME, "armed", seq=state.seq, ends_at=state.ends_at)
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
        place = OnBox(cloud, attempt.instance_id, shell)
        return Fuse(place, attempt, journal, clock, cloud)
    return None


def from_start(cloud: Provisioner, label: str, terminate: str) -> str:
    """The script of a fuse that the provider starts with the box; empty where none can."""
    if not isinstance(cloud, FuseFromStart):
        return ""
    home, inside = _home(cloud.root), _inside(cloud.root, terminate)
    return fuse.script(home, label, cloud.self_destroy(""), inside)


def _home(root: str) -> str:
    return f"{root}/.gpurun/fuse"


def _inside(root: str, text: str) -> str:
    return f"(cd {shlex.quote(root)} && {{\n{text}\n}})"
