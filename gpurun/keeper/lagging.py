"""A guard that could not be moved ends its box before the timer does: the earliest counts (I9, W1).

What `gpurun extend` could not tell the fuse, or the provider's own timer, they do not know.  The
run then ends by the older deadline, here as well, so that its results are fetched before that.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpurun.budget import FUSE_MARGIN_S
from gpurun.clock import Clock
from gpurun.model import Attempt, Timer
from gpurun.store import Journal
from gpurun.store.timers import GuardWord
from gpurun.timers import fires_in_s

STATES = ("armed", "unknown", "arming")  # in which it may still hold what it was read to hold
COLLECTS_BEFORE = timedelta(seconds=FUSE_MARGIN_S)


@dataclass(frozen=True, slots=True)
class Laggard:
    """One guard that holds an older timer, and when it acts."""

    name: str
    acts_at: datetime

    @property
    def ends_at(self) -> datetime:
        """When the box must be gone, so that the guard cuts no collection."""
        return self.acts_at - COLLECTS_BEFORE


class Laggards:
    """`words_of` answers what is known of a label's guards since some seconds."""

    def __init__(
        self, words_of: Callable[[str], Iterable[GuardWord]], journal: Journal, clock: Clock
    ) -> None:
        self._words_of = words_of
        self._journal = journal
        self._clock = clock

    def of(self, attempt: Attempt, timer: Timer) -> Laggard | None:
        """What would fire the timer by what was known is read once more before it does."""
        if attempt.ending is not None:
            return None
        found = laggard(timer, self._words_of(attempt.label), self._clock)
        if found is None or fires_in_s(brought_forward(timer, found), self._clock) > 0:
            return found
        return laggard(timer, self._journal.timers.guards_of(attempt.label), self._clock)


def laggard(timer: Timer, words: Iterable[GuardWord], clock: Clock) -> Laggard | None:
    """The first that would end the box before this timer does; one whose time is over did not."""
    found = (
        Laggard(word.name, _acts_at(word.name, word.ends_at_read))
        for word in words
        if word.state in STATES and word.ends_at_read and word.seq_read != timer.seq
    )
    now = clock.now()
    early = [each for each in found if each.ends_at < timer.ends_at and each.acts_at > now]
    return min(early, key=lambda each: each.acts_at, default=None)


def brought_forward(timer: Timer, to: Laggard) -> Timer:
    """The same timer, with the same grace, so much earlier."""
    by = timer.ends_at - to.ends_at
    return replace(
        timer,
        fires_at=timer.fires_at - by,
        ends_at=timer.ends_at - by,
        fires_boot_s=timer.fires_boot_s - by.total_seconds(),
        ends_boot_s=timer.ends_boot_s - by.total_seconds(),
    )


def _acts_at(name: str, ends_at: datetime) -> datetime:
    """The fuse is handed E and acts later; a provider's timer is read as it fires."""
    return ends_at + COLLECTS_BEFORE if name == "fuse" else ends_at
