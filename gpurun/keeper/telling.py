"""When a person is told something again: pure functions of what the journal says was tried.

What a service did not take is tried again for a day, as long as it still holds.  What must not be
overheard is told anew, though every service took it, for as long as it lasts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpurun.store.told import Told

AGAIN_AFTER = tuple(timedelta(seconds=s) for s in (10, 60, 300, 900, 3600))  # the last one stands
GIVEN_UP_AFTER = timedelta(days=1)
HOUR = timedelta(hours=1)
LOUDER_AFTER = (*(timedelta(minutes=m) for m in (1, 5, 15)), HOUR)  # from then on by the hour


@dataclass(frozen=True, slots=True)
class Louder:
    """How often it was time to say it again: `times`, 0 before that; and when it is once more."""

    times: int = 0
    first_at: datetime | None = None
    next_at: datetime | None = None


def silent(told: Mapping[str, Told], now: datetime) -> set[str]:
    """What is not to be told now: it was, or its next try is not due."""
    return {key for key, each in told.items() if (at := again_at(each)) is None or at > now}


def again_at(told: Told) -> datetime | None:
    """When it is tried again; None: never."""
    if told.over:
        return None
    pause = AGAIN_AFTER[min(told.failures, len(AGAIN_AFTER)) - 1]
    at = told.last_at + pause
    return None if at - told.first_at > GIVEN_UP_AFTER else at


def next_at(told: Mapping[str, Told], now: datetime) -> datetime | None:
    """When something of it may be due that is not yet."""
    found = [at for each in told.values() if (at := again_at(each)) is not None and at > now]
    return min(found, default=None)


def louder(first: Told | None, now: datetime) -> Louder:
    """Of what was first told, or tried, then; what a keeper slept through is not made up for."""
    if first is None:
        return Louder(next_at=now + LOUDER_AFTER[0])
    lasted = now - first.first_at
    hours = max(0, lasted // HOUR - 1)
    times = sum(lasted >= after for after in LOUDER_AFTER) + hours
    after = LOUDER_AFTER[times] if times < len(LOUDER_AFTER) else HOUR * (hours + 2)
    return Louder(times, first.first_at, first.first_at + after)
