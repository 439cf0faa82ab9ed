"""How much of the caps of day and month is used: noted for `status`, and told at each mark.

What counts is what a reservation counts: all that may still be spent, not only what is.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime

from gpurun.engine.limits import period_caps
from gpurun.glance.rows import iso
from gpurun.keeper.news import News, highest
from gpurun.marks import passed
from gpurun.settings import Settings
from gpurun.show.text import local_time
from gpurun.store.periods import PeriodCap, Room


def all_caps(settings: Settings, now: datetime) -> list[PeriodCap]:
    """Those of all providers together, and those of each that has its own."""
    providers = {"", *settings.max_usd_per_day_at, *settings.max_usd_per_month_at}
    found = (cap for each in sorted(providers) for cap in period_caps(settings, each, now))
    return list(dict.fromkeys(found))


def news_of(rooms: Sequence[Room], on: Collection[str], told: Collection[str]) -> Iterator[News]:
    """Of each cap the last mark that is wanted, once in a period."""
    for room in rooms:
        cap = room.cap
        again = f"of {cap.name} ${cap.usd:.2f} since {cap.since:%Y-%m-%d}"
        mark = highest(passed(room.counted_usd, cap.usd), on, told, again)
        if mark:
            title = f"gpurun: {mark} of {cap.name} is spent or reserved"
            yield News("", mark, title, _body(room), again)


def _body(room: Room) -> str:
    cap = room.cap
    where = f"at {cap.provider}" if cap.provider else "of all runs together"
    return (
        f"${room.counted_usd:.2f} of ${cap.usd:.2f} {where}; the period ends "
        f"{local_time(iso(cap.until))}. What would pass the cap is refused; what a box does not "
        "use of its reservation is free again when it is gone. `gpurun status` shows what runs."
    )
