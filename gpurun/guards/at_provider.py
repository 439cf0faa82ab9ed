"""The provider's own timer for one box: armed, read back, moved, disarmed.

It is matched by what it would do, so that one whose answer was lost is found too.  It has no seq of
its own: it holds a timer when it fires at the hour that this timer comes to.
"""

from datetime import datetime, timedelta

from gpurun.errors import PhaseFailed, ProviderError, TimerRefused
from gpurun.model import Attempt, Timer
from gpurun.provider import KeepsTimers, ProviderTimer, Provisioner
from gpurun.store import Journal

NAME = "provider"
TOO_LATE = timedelta(minutes=3)  # before it fires it can no longer be moved surely


class AtProvider:
    """One box's timer at its provider."""

    def __init__(self, cloud: KeepsTimers, attempt: Attempt, journal: Journal) -> None:
        assert attempt.instance_id is not None
        self._cloud = cloud
        self._id = attempt.instance_id
        self._label = attempt.label
        self._timers = journal.timers

    def arm(self, timer: Timer) -> str:
        """Put it in place of what is held; what went wrong, else nothing.

        The keeper tries again for what is left `arming` or `none`; what the account may not is
        `refused`.
        """
        self._timers.guard(self._label, NAME, "arming")
        try:
            held = self._cloud.arm_provider_timer(self._id, timer.ends_at)
        except TimerRefused as error:
            self._timers.guard(self._label, NAME, "refused")
            return str(error)
        except ProviderError as error:
            return str(error)
        self.noted(timer, held)
        return "" if held is not None else "it is not yet listed"

    def read(self, timer: Timer) -> ProviderTimer | None:
        """ProviderError when it cannot be asked; what was known of it then grows old."""
        return self.noted(timer, self._cloud.provider_timer(self._id))

    def noted(self, timer: Timer, held: ProviderTimer | None) -> ProviderTimer | None:
        """What was read of it just now.  None is held: the keeper arms it again."""
        if held is None:
            self._timers.guard(self._label, NAME, "none")
        else:
            seq = timer.seq if self.holds(timer, held) else None
            self._timers.guard(self._label, NAME, "armed", seq=seq, ends_at=held.fires_at)
        return held

    def holds(self, timer: Timer, held: ProviderTimer) -> bool:
        return held.fires_at == self._wanted_at(timer)

    def require(self, timer: Timer) -> None:
        """A5: no launch while it would fire for an older timer than this one."""
        try:
            held = self.read(timer)
            if held is None or held.fires_at >= self._wanted_at(timer):
                return
            self._cloud.disarm_provider_timer(self._id)
        except ProviderError as error:
            raise PhaseFailed(
                "the provider's own timer can be neither moved to the run timer nor removed: it "
                f"may end the training at the setup hour. Training was not launched. {error}"
            ) from error
        self._timers.guard(self._label, NAME, "none")

    def fires_too_soon(self, timer: Timer, now: datetime) -> datetime | None:
        """When it fires, if that is too near for it to be moved."""
        held = self.read(timer)
        return held.fires_at if held is not None and held.fires_at - now < TOO_LATE else None

    def disarm(self) -> None:
        """After the proof of death.  ProviderError: still due."""
        self._cloud.disarm_provider_timer(self._id)
        self._timers.guard(self._label, NAME, "disarmed")

    def _wanted_at(self, timer: Timer) -> datetime:
        return self._cloud.timer_fires_at(timer.ends_at)


def at_provider(cloud: Provisioner, attempt: Attempt, journal: Journal) -> AtProvider | None:
    """None where there is no box yet, or its provider keeps no timers."""
    if attempt.instance_id is None or not isinstance(cloud, KeepsTimers):
        return None
    return AtProvider(cloud, attempt, journal)
