"""What all runs together may cost: dollars per hour at once, dollars of a day and of a month.

Days and months are those of the calendar in UTC.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from gpurun import wiring
from gpurun.clock import Clock
from gpurun.errors import UsageError
from gpurun.model import Budget
from gpurun.places import Places
from gpurun.recipe.kinds import shown
from gpurun.settings import Settings
from gpurun.store import Journal
from gpurun.store.ledger import Caps
from gpurun.store.periods import PeriodCap, Room, over_period, over_rate

ZERO = Decimal(0)
OF_RUN = "budget.max_usd"


@dataclass(frozen=True, slots=True)
class Tightest:
    """The cap that leaves a plan the fewest dollars."""

    name: str
    usd: Decimal
    left_usd: Decimal


def caps_of(
    settings: Settings,
    budget: Budget,
    provider: str,
    now: datetime,
    new_usd_per_hour: Decimal = ZERO,
    beside_usd: Decimal = ZERO,
) -> Caps:
    """For a reservation; $/h at once are counted where a box is rented, not where it goes on."""
    return Caps(
        run_usd=budget.max_usd,
        usd_per_hour=settings.max_concurrent_usd_per_hour if new_usd_per_hour else None,
        new_usd_per_hour=new_usd_per_hour,
        periods=period_caps(settings, provider, now),
        beside_usd=beside_usd,
    )


def period_caps(settings: Settings, provider: str, now: datetime) -> tuple[PeriodCap, ...]:
    """Those that a purchase at this provider must keep, now."""
    kind, found = wiring.kind(provider), []
    for name, (since, until) in {"day": _day(now), "month": _month(now)}.items():
        setting = f"max_usd_per_{name}"
        if (usd := getattr(settings, setting)) is not None:
            found.append(PeriodCap(setting, usd, since, until))
        if (usd := getattr(settings, f"{setting}_at").get(kind)) is not None:
            found.append(PeriodCap(f"{setting}_at.{kind}", usd, since, until, kind))
    return tuple(found)


def tightest(
    settings: Settings,
    budget: Budget,
    provider: str,
    usd_per_hour: Decimal,
    ceiling_usd: Decimal,
    clock: Clock,
) -> Tightest:
    """OverCap where a cap would not let this plan through; the rent asks again, and surely."""
    _refuse_unknown(settings)
    caps = period_caps(settings, provider, clock.now())
    rooms, rate = _counted(Places(settings.state_dir), caps, clock)
    most = settings.max_concurrent_usd_per_hour
    if most is not None and rate + usd_per_hour > most:
        raise over_rate(rate, usd_per_hour, most)
    for room in rooms:
        if ceiling_usd > room.left_usd:
            raise over_period(room, ceiling_usd)
    return tightest_of(budget, budget.max_usd, rooms)


def tightest_of(budget: Budget, left_usd: Decimal, rooms: Sequence[Room]) -> Tightest:
    """Of a run, of whose own money so much is left, and of what the caps of all let through."""
    run = Tightest(OF_RUN, budget.max_usd, left_usd)
    found = (Tightest(room.cap.name, room.cap.usd, room.left_usd) for room in rooms)
    return min([run, *found], key=lambda each: each.left_usd)


def _counted(
    places: Places, caps: tuple[PeriodCap, ...], clock: Clock
) -> tuple[list[Room], Decimal]:
    """Before the first run there is no journal, and none is made for a plan."""
    if places.database.exists():
        journal = Journal(places.database, clock)
        try:
            if journal.database.version() is not None:
                return journal.ledger.rooms(caps), journal.ledger.usd_per_hour()
        finally:
            journal.close()
    return [Room(cap, ZERO) for cap in caps], ZERO


def _refuse_unknown(settings: Settings) -> None:
    """A cap on a misspelt provider would hold nothing back."""
    known = wiring.kinds()
    for setting in ("max_usd_per_day_at", "max_usd_per_month_at"):
        for name in getattr(settings, setting):
            if name not in known:
                raise UsageError(
                    f"{setting} in the settings names {shown(name)}, which is not a provider: "
                    f"there are {', '.join(known)}. Nothing was rented."
                )


def _day(now: datetime) -> tuple[datetime, datetime]:
    since = datetime(now.year, now.month, now.day, tzinfo=UTC)
    return since, since + timedelta(days=1)


def _month(now: datetime) -> tuple[datetime, datetime]:
    since = datetime(now.year, now.month, 1, tzinfo=UTC)
    return since, (since + timedelta(days=32)).replace(day=1)
