"""What ends a box, and when: the timer in force, each guard, and the earliest of them (I9, I15)."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from gpurun.budget import FUSE_MARGIN_S, cost
from gpurun.glance.money import cents, rate_text
from gpurun.glance.reader import Row
from gpurun.glance.rows import Keeper, Wallet, instant, iso
from gpurun.model import SETTLED, TimerState

READ_BACK_WITHIN = {"fuse": timedelta(seconds=180)}
ELSE_READ_BACK_WITHIN = timedelta(minutes=30)  # the provider's own timer: it needs nobody's beat
ACTS_AFTER_READ_S = {"fuse": FUSE_MARGIN_S}  # it is handed E, and acts at F


@dataclass(frozen=True, slots=True)
class Guard:
    """One guard of a box: what it is known to hold, and whether that knowledge is fresh."""

    name: str
    state: str
    ends_bill: bool
    seq: int | None
    acts_at: datetime | None
    read_back_at: datetime | None

    @property
    def alive(self) -> bool:
        return self.state in ("armed", "lagging")

    def document(self, now: datetime) -> dict[str, Any]:
        return {
            "name": self.name,
            "state": self.state,
            "ends_bill": self.ends_bill,
            "seq": self.seq,
            "fires_at": iso(self.acts_at),
            "read_back_at": iso(self.read_back_at),
            "read_back_age_s": None
            if self.read_back_at is None
            else _age_s(self.read_back_at, now),
        }


def timer_in_force(attempt: Row | None, timers: list[Row]) -> Row | None:
    """None once the box is proven gone."""
    if attempt is None or attempt.get("state") in SETTLED:
        return None
    counting = (TimerState.IN_FORCE, TimerState.FIRED)
    return max(
        (row for row in timers if row.get("state") in counting and isinstance(row["seq"], int)),
        key=lambda row: int(row["seq"]),
        default=None,
    )


def guards_of(
    attempt: Row, timer: Row, rows: list[Row], keeper: Keeper, now: datetime
) -> list[Guard]:
    """The keeper first, by its own beat and lists; the others as they were last read back."""
    others = [_as_read(row, timer, now) for row in rows if row["name"] != "keeper"]
    return [_keeper(attempt, timer, rows, keeper, now), *others]


def timer_document(timer: Row, guards: list[Guard], now: datetime) -> dict[str, Any]:
    effective = _effective(guards)
    effective_at = effective.acts_at if effective else None
    return {
        "kind": timer.get("kind"),
        "seq": timer["seq"],
        "fires_at": iso(instant(timer["fires_at"])),
        "ends_at": iso(instant(timer["ends_at"])),
        "remaining_s": _remaining_s(effective_at or instant(timer["ends_at"]), now),
        "effective_at": iso(effective_at),
        "effective_by": effective.name if effective else None,
    }


def if_lost_document(
    timer: Row,
    guards: list[Guard],
    usd_per_hour: Decimal | None,
    account_id: str,
    wallet: Wallet | None,
) -> dict[str, Any]:
    """What becomes of the bill when this machine is gone for good, the keeper with it."""
    able = [
        (guard.acts_at, guard.name)
        for guard in guards
        if guard.alive and guard.ends_bill and guard.acts_at and guard.name != "keeper"
    ]
    last_at = max((acts_at for acts_at, _ in able), default=None)
    ends_at = instant(timer["ends_at"])
    more = None
    if last_at is not None and ends_at is not None and usd_per_hour is not None:
        more = cost(usd_per_hour, max(0.0, (last_at - ends_at).total_seconds()))
    return {
        "ended_by": [name for _, name in sorted(able)],
        "ends_at": iso(last_at),
        "usd_more": None if more is None else str(cents(more)),
        "account_id": account_id,
        "wallet_usd": None if wallet is None else rate_text(wallet.usd),
        "wallet_read_at": None if wallet is None else iso(wallet.read_at),
    }


def _effective(guards: list[Guard]) -> Guard | None:
    """The earliest that is alive; one that has not been read back lately can only come before."""
    alive = [guard for guard in guards if guard.alive and guard.acts_at]
    if not alive:
        return None
    silent = [guard for guard in guards if guard.state == "unknown" and guard.acts_at]
    return min([*alive, *silent], key=lambda guard: (guard.acts_at, not guard.alive))


def _keeper(attempt: Row, timer: Row, rows: list[Row], keeper: Keeper, now: datetime) -> Guard:
    account = (str(attempt.get("provider")), str(attempt.get("account_id")))
    alive = keeper.alive_for(*account, now)
    listed_at = keeper.listed_at.get(account)
    known = [at for at in (keeper.beat_at, listed_at) if at]
    return Guard(
        name="keeper",
        state="armed" if alive else "unknown",
        ends_bill=all(bool(row.get("ends_bill")) for row in rows if row["name"] == "keeper"),
        seq=timer["seq"] if alive else None,
        # Of a keeper that is not there nothing is known, not even that it could act earlier.
        acts_at=instant(timer["ends_at"]) if alive else None,
        read_back_at=min(known) if len(known) == 2 else None,
    )


def _as_read(row: Row, timer: Row, now: datetime) -> Guard:
    name, state = str(row["name"]), str(row.get("state"))
    read_at, ends_at = instant(row.get("read_back_at")), instant(row.get("ends_at_read"))
    if state == "armed":
        fresh_for = READ_BACK_WITHIN.get(name, ELSE_READ_BACK_WITHIN)
        if read_at is None or now - read_at > fresh_for:
            state = "unknown"
        elif row.get("seq_read") != timer["seq"]:
            state = "lagging"
    return Guard(
        name=name,
        state=state,
        ends_bill=bool(row.get("ends_bill")),
        seq=row.get("seq_read") or None,
        acts_at=_acts_at(name, ends_at) if state in ("armed", "lagging", "unknown") else None,
        read_back_at=read_at,
    )


def _acts_at(name: str, ends_at: datetime | None) -> datetime | None:
    try:
        return ends_at and ends_at + timedelta(seconds=ACTS_AFTER_READ_S.get(name, 0.0))
    except OverflowError:  # of a damaged row
        return None


def _age_s(moment: datetime, now: datetime) -> float:
    return round(max(0.0, (now - moment).total_seconds()), 1)


def _remaining_s(until: datetime | None, now: datetime) -> float | None:
    return None if until is None else round(max(0.0, (until - now).total_seconds()), 1)
