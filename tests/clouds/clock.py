"""The time of a cloud: real time at a rate, plus jumps, and what is to happen when.

A jump passes through everything that was due on the way, in order and at its own instant: a
scheduled DELETE inside a jump of nine hours ends the bill at its full hour, not at the end.
"""

import heapq
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal


class Clock:
    """Injected; several clouds may share one.  `rate` 0 stands still, 60 is a minute a second."""

    def __init__(self, start: datetime | None = None, rate: float = 1.0) -> None:
        self._at = start or datetime.now(UTC)
        self._since_s = time.monotonic()
        self._rate = rate

    @property
    def rate(self) -> float:
        return self._rate

    def now(self) -> datetime:
        return self._at + timedelta(seconds=(time.monotonic() - self._since_s) * self._rate)

    def advance(self, seconds: float) -> None:
        """Jump; time never goes back, because bills do not."""
        if seconds < 0:
            raise ValueError(f"a cloud's clock cannot go back by {-seconds} s")
        self._at += timedelta(seconds=seconds)

    def run_at(self, rate: float) -> None:
        """From now on, this many seconds pass in each real one."""
        self._at, self._since_s = self.now(), time.monotonic()
        self._rate = rate


@dataclass(order=True, slots=True)
class Event:
    """Something that will happen, unless it is cancelled."""

    when: datetime
    order: int
    action: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class Timeline:
    """What happens when.  `now` stands still between two calls of `settle`."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.now = clock.now()
        self._events: list[Event] = []
        self._order = itertools.count()

    def at(self, when: datetime, action: Callable[[], None]) -> Event:
        """Do this then; what lies in the past is done at the next `settle`, at this instant."""
        event = Event(max(when, self.now), next(self._order), action)
        heapq.heappush(self._events, event)
        return event

    def after(self, seconds: float, action: Callable[[], None]) -> Event:
        return self.at(self.now + timedelta(seconds=seconds), action)

    def settle(self) -> None:
        """Let everything happen that is due by the clock, each at its own instant."""
        until = self.clock.now()
        while self._events and self._events[0].when <= until:
            event = heapq.heappop(self._events)
            if not event.cancelled:
                self.now = event.when
                event.action()
        self.now = max(self.now, until)


def seconds(span: timedelta) -> Decimal:
    """The exact length of a time span."""
    return Decimal(span // timedelta(microseconds=1)) / 1_000_000
