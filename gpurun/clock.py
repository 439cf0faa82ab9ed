"""The trusted clock (protocol 6); nothing else in gpurun reads the time or sleeps.

Time is the boot clock plus an offset: a step of the wall clock neither fires nor delays a timer,
and a machine that was suspended has not lost the hours it slept.  The offset is the wall clock's
until somebody else has a word on it: a provider, by the `Date` of its answers, or a process of this
boot that had it before.
"""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

SAME_WITHIN_S = 2.0
ANSWERS_APART_S = 10.0
NEAR_S = 60.0  # a clock that nobody has confirmed follows one `Date` so far, a further one not
ANSWERED_WITHIN_S = 10.0  # a `Date` that took longer to come tells too little
HALF_S = 0.5  # a `Date` has no fractions


class Clock(Protocol):
    """What the core knows of time."""

    boot_id: str
    sure: bool  # a provider's `Date` has agreed to `now`, in this process

    def now(self) -> datetime:
        """Trusted time, aware UTC."""

    def boot_s(self) -> float:
        """Seconds since boot, suspended time included."""

    def sleep(self, seconds: float) -> None: ...

    def dated(self) -> datetime | None:
        """The time by the last `Date` that was seen; None when none was."""

    def observe(self, provider_date: datetime, took_s: float = 0.0) -> None:
        """A provider's `Date`, in an answer that took so long.

        Two that agree, 10 s or more apart, correct the offset; one that is near does, while nobody
        has confirmed it.
        """


class SystemClock:
    """The machine's own clocks."""

    def __init__(self) -> None:
        self.boot_id = _boot_id()
        self.sure = False
        self._offset_s = time.time() - self.boot_s()
        self._dated_s: float | None = None  # the offset by the last Date
        self._candidate: tuple[float, float] | None = None  # (boot_s, offset) of a disagreeing Date

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.boot_s() + self._offset_s, UTC)

    def boot_s(self) -> float:
        # macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC counts suspended time.
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))

    def set(self, offset_s: float) -> None:
        """Time as another process of this boot has it: boot clock and so much more."""
        self._offset_s = offset_s

    def dated(self) -> datetime | None:
        if self._dated_s is None:
            return None
        return datetime.fromtimestamp(self.boot_s() + self._dated_s, UTC)

    def observe(self, provider_date: datetime, took_s: float = 0.0) -> None:
        if took_s > ANSWERED_WITHIN_S:
            return
        seen_s = self.boot_s()
        offset_s = provider_date.timestamp() + HALF_S - (seen_s - took_s / 2)
        within_s = SAME_WITHIN_S + took_s / 2
        self._dated_s = offset_s
        away_s = abs(offset_s - self._offset_s)
        if away_s <= within_s:
            self.sure, self._candidate = True, None
        elif not self.sure and away_s <= NEAR_S:
            self._offset_s, self.sure = offset_s, True
        elif self._candidate is None or abs(self._candidate[1] - offset_s) > within_s:
            self._candidate = (seen_s, offset_s)
        elif seen_s - self._candidate[0] >= ANSWERS_APART_S:
            self._offset_s, self.sure = offset_s, True
            self._candidate = None


def wall_s() -> float:
    """The wall clock, for comparing it with the trusted one: never for a deadline."""
    return time.time()


def after(moment: datetime, seconds: float) -> datetime:
    return moment + timedelta(seconds=seconds)


def _boot_id() -> str:
    linux = Path("/proc/sys/kernel/random/boot_id")
    if linux.exists():
        return linux.read_text().strip()
    # macOS: the time of boot, to the minute, identifies it well enough.
    return f"boot-{int((time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)) // 60)}"


class Deadline:
    """A short wait for another process of ours: poll `passed()` until it is true."""

    def __init__(self, seconds: float, poll_s: float = 0.05) -> None:
        self._until_s = time.monotonic() + seconds
        self._poll_s = poll_s
        self._polled = False

    def passed(self) -> bool:
        if self._polled:
            time.sleep(self._poll_s)
        self._polled = True
        return time.monotonic() > self._until_s
