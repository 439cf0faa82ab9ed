"""The trusted clock (protocol 6); nothing else in gpurun reads the time or sleeps.

Time is the boot clock plus an offset: a step of the wall clock neither fires nor delays a timer,
and a machine that was suspended has not lost the hours it slept.
"""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

SAME_WITHIN_S = 2.0
ANSWERS_APART_S = 10.0


class Clock(Protocol):
    """What the core knows of time."""

    boot_id: str

    def now(self) -> datetime:
        """Trusted time, aware UTC."""

    def boot_s(self) -> float:
        """Seconds since boot, suspended time included."""

    def sleep(self, seconds: float) -> None: ...

    def observe(self, provider_date: datetime) -> None:
        """A provider's `Date`; two that agree, 10 s or more apart, correct the offset."""


class SystemClock:
    """The machine's own clocks."""

    def __init__(self) -> None:
        self.boot_id = _boot_id()
        self._offset_s = time.time() - self.boot_s()
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

    def observe(self, provider_date: datetime) -> None:
        seen_s = self.boot_s()
        offset_s = provider_date.timestamp() - seen_s
        if abs(offset_s - self._offset_s) <= SAME_WITHIN_S:
            self._candidate = None
        elif self._candidate is None or abs(self._candidate[1] - offset_s) > SAME_WITHIN_S:
            self._candidate = (seen_s, offset_s)
        elif seen_s - self._candidate[0] >= ANSWERS_APART_S:
            self._offset_s = offset_s
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
