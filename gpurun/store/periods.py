"""What a day or a month has cost, and may still cost: for caps on all runs together.

Of every box that has lived in the period:
  what was booked for the time in it, in the measure of what the provider has charged since then;
  what its reservation still holds, as long as it is not proven gone: all of it, however far it
  reaches, so that the period's end never lets more through;
  what may be billed beside that, until the provider has charged.

Dollars are summed by SQLite and exact to a millionth.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import text
from sqlmodel import Session

from gpurun.errors import BudgetError
from gpurun.model import SETTLED, AttemptState

ZERO = Decimal(0)
EXACT_TO = Decimal("0.000001")

# `instances` leads, so that of the ledger only rows of the period's boxes are read.
_BOXES = text(
    """
    SELECT i.label, i.provider, i.state, i.gone_at,
      SUM((l.kind = 'accrue') * CAST(l.usd AS REAL) * CASE
        WHEN l.at <= :since THEN 0
        WHEN l.since IS NULL OR l.since >= :since THEN 1
        ELSE (l.at - :since) / (l.at - l.since) END) AS booked_in_it,
      SUM((l.kind = 'accrue') * CAST(l.usd AS REAL)) AS booked,
      SUM((l.kind = 'settle') * CAST(l.usd AS REAL)) AS settled,
      MAX(CASE WHEN l.kind = 'settle' THEN l.at END) AS settled_at,
      SUM((l.kind IN ('reserve', 'release')) * CAST(l.usd AS REAL)) AS reserved,
      MAX(CASE WHEN l.kind = 'reserve' THEN l.at END) AS reserved_at,
      SUM((l.kind = 'hold' AND l.phase = 'tail') * CAST(l.usd AS REAL)) AS tail,
      SUM((l.kind = 'hold' AND l.phase <> 'tail') * CAST(l.usd AS REAL)) AS beside
    FROM instances i CROSS JOIN ledger l ON l.run_id = i.run_id AND l.label = i.label
    WHERE i.state NOT IN ('refused', 'expired') AND (i.gone_at IS NULL OR i.gone_at > :since)
    GROUP BY i.label
    """
)
_BOOKED_SINCE = text(
    """
    SELECT SUM(CAST(usd AS REAL) * CASE
      WHEN since IS NULL OR since >= :since THEN 1
      ELSE (at - :since) / (at - since) END)
    FROM ledger
    WHERE run_id = (SELECT run_id FROM instances WHERE label = :label)
      AND label = :label AND kind = 'accrue' AND at > :since
    """
)


class OverCap(BudgetError):
    """Together with what is already reserved this would cost more than a cap allows."""


@dataclass(frozen=True, slots=True)
class PeriodCap:
    """The most that what is bought may cost from `since` on; of one kind of provider, or of all.

    `name` is that of its setting, `until` when the next period begins.
    """

    name: str
    usd: Decimal
    since: datetime
    until: datetime
    provider: str | None = None


@dataclass(frozen=True, slots=True)
class Room:
    """What a cap still lets through."""

    cap: PeriodCap
    counted_usd: Decimal

    @property
    def left_usd(self) -> Decimal:
        return max(ZERO, self.cap.usd - self.counted_usd)


def rooms(session: Session, caps: Sequence[PeriodCap], but_label: str = "") -> list[Room]:
    """The tightest first; without what is reserved for one label."""
    by_period = {
        since: _counted(session, since, but_label) for since in {cap.since for cap in caps}
    }
    found = [Room(cap, _sum(by_period[cap.since], cap.provider)) for cap in caps]
    return sorted(found, key=lambda room: room.left_usd)


def over_rate(billing: Decimal, more: Decimal, cap: Decimal) -> OverCap:
    """Dollars per hour: of what bills already, of what is to be rented, and their cap."""
    wait = "Rent a cheaper box" if more > cap else "Wait for a run to end (`gpurun status`)"
    return OverCap(
        f"all boxes together would cost ${billing + more:.2f}/h; max_concurrent_usd_per_hour is "
        f"${cap:.2f}. {wait}, or raise max_concurrent_usd_per_hour in the settings."
    )


def over_period(room: Room, usd: Decimal) -> OverCap:
    cap = room.cap
    wait = "" if usd > cap.usd else f", or wait until {cap.until:%b %d %H:%M} UTC"
    return OverCap(
        f"{cap.name} is ${cap.usd:.2f}, of which ${room.counted_usd:.2f} are spent or reserved "
        f"since {cap.since:%b %d %H:%M} UTC: another ${usd:.2f} would pass it. "
        f"Shorten the run, or raise {cap.name} in the settings{wait}."
    )


def _counted(session: Session, since: datetime, but_label: str) -> dict[str, float]:
    """Dollars by kind of provider: each host of `ssh` is a provider of that kind."""
    found: dict[str, float] = {}
    for box in session.connection().execute(_BOXES, {"since": since.timestamp()}).mappings():
        usd = _spent_and_beside(box)
        if box["state"] not in SETTLED and box["label"] != but_label:
            usd += _still_reserved(session, box)
        kind = str(box["provider"]).partition(":")[0]
        found[kind] = found.get(kind, 0.0) + usd
    return found


def _spent_and_beside(box: Any) -> float:
    gone = box["state"] == AttemptState.GONE
    settled = gone and box["settled_at"] is not None and box["settled_at"] >= box["gone_at"]
    spent: float = box["booked_in_it"]
    if box["booked"]:
        spent *= (box["booked"] + box["settled"]) / box["booked"]
    else:
        spent += box["settled"]
    if settled:
        return spent
    return spent + float(box["beside"]) + (float(box["tail"]) if gone else 0.0)


def _still_reserved(session: Session, box: Any) -> float:
    """What was booked since the reservation was made, it has paid for."""
    if not box["reserved"]:
        return 0.0
    since = {"label": box["label"], "since": box["reserved_at"]}
    used = session.connection().execute(_BOOKED_SINCE, since).scalar() or 0.0
    return max(0.0, float(box["reserved"]) - float(used))


def _sum(by_kind: dict[str, float], kind: str | None) -> Decimal:
    usd = sum(usd for name, usd in by_kind.items() if kind in (None, name))
    return Decimal(repr(usd)).quantize(EXACT_TO)
