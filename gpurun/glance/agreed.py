"""One time for all processes of a machine while a box lives.

A process takes the time of day from the wall clock when it starts.  If that was set since a box was
rented, the hours by which it was set would be booked as hours of the box.  A timer holds its
instants by both clocks, so whoever comes later can take over what it was made by.
"""

from pathlib import Path

from gpurun.clock import SAME_WITHIN_S, SystemClock
from gpurun.glance.reader import Reader, Row, Unreadable
from gpurun.model import SETTLED, TimerState
from gpurun.places import Places

_NEWEST = f"""
JOIN instances ON instances.label = timers.label
WHERE timers.boot_id = ? AND timers.state IN (?, ?)
AND instances.state NOT IN ({", ".join("?" * len(SETTLED))})
ORDER BY timers.rowid DESC LIMIT 1
"""
_INSTANTS = "fires_at, ends_at, fires_boot_s, ends_boot_s"


def agreed_clock(home: Path) -> SystemClock:
    """This machine's clock, set as the newest timer of this boot has it whose box may live."""
    clock = SystemClock()
    values = (clock.boot_id, TimerState.IN_FORCE, TimerState.FIRED, *SETTLED)
    try:
        with Reader(Places(home).database) as reader:
            found = reader.select(_INSTANTS, "timers", _NEWEST, values)
    except Unreadable:
        return clock
    offset_s = _offset_s(found[0]) if found else None
    if offset_s is not None:
        clock.set(offset_s)
    return clock


def _offset_s(timer: Row) -> float | None:
    """From the boot clock to the time of day; None of a row that does not agree with itself."""
    try:
        by_fires_s = timer["fires_at"] - timer["fires_boot_s"]
        by_ends_s = timer["ends_at"] - timer["ends_boot_s"]
        return float(by_fires_s) if abs(by_fires_s - by_ends_s) <= SAME_WITHIN_S else None
    except TypeError:
        return None
