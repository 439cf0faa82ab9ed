"""The ledger: append-only dollars, by phase.  A cap is checked in the transaction that reserves.

reserve, release   what an attempt may cost at most, until it is proven gone
accrue             its all-in rate by the clock, from the request to that proof, whatever its state
hold               what may be billed beside that, until the provider says what it has charged:
                   `tail`, its rate for as long as billing may go on after the proof;
                   `traffic`, what a run is expected to move, at its offer's prices; more once its
                   provider has counted more
settle             the difference to what the provider has charged, for ever after the truth
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from gpurun.budget import cost
from gpurun.clock import Clock
from gpurun.model import SETTLED, AttemptState
from gpurun.store.database import Database
from gpurun.store.holds import add_hold, lacking
from gpurun.store.marks import note_marks
from gpurun.store.periods import OverCap, PeriodCap, Room, over_period, over_rate, rooms
from gpurun.store.tables import EventRow, InstanceRow, LedgerRow

ZERO = Decimal(0)
NEVER_MADE = (AttemptState.REFUSED, AttemptState.EXPIRED)
NEVER_BILLED = (AttemptState.INTENT, *NEVER_MADE)
SPENT = ("accrue", "settle")
UNBILLED = "unbilled"  # the event that says why nobody asks any more what a box has cost


@dataclass(frozen=True, slots=True)
class Caps:
    """What no reservation may pass: dollars of the run, $/h of everything at once, dollars of a day
    or a month.

    new_usd_per_hour  what is about to be rented
    beside_usd        what it may be billed beside its reservation
    """

    run_usd: Decimal
    usd_per_hour: Decimal | None = None
    new_usd_per_hour: Decimal = ZERO
    periods: tuple[PeriodCap, ...] = ()
    beside_usd: Decimal = ZERO


@dataclass(frozen=True, slots=True)
class Bill:
    """A box that is gone; `settled_at` is when its charge was last booked."""

    label: str
    run_id: str
    provider: str
    account_id: str
    instance_id: str
    sent_at: datetime
    gone_at: datetime
    settled_at: datetime | None
    given_up: bool


class Ledger:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def book(self, label: str, phase: str) -> Decimal:
        """Accrue what the box has cost since the last booking, up to now or until it was gone.

        One transaction finds the stretch and books it, so that a driver and a keeper that book
        at once never book the same minute twice.
        """
        with self._database.write() as session:
            row = session.get(InstanceRow, label)
            return ZERO if row is None else add_booking(session, row, phase, self._clock)

    def hold(self, label: str, tail_s: float, traffic_usd: Decimal = ZERO) -> None:
        """What may be billed beside the rate; raised to what is more, never lowered."""
        with self._database.read() as session:  # a keeper that starts asks this of every box
            if not lacking(session, label, tail_s, traffic_usd):
                return
        with self._database.write() as session:
            box = session.get_one(InstanceRow, label)
            for phase, usd in lacking(session, label, tail_s, traffic_usd).items():
                add_hold(session, box.run_id, label, phase, usd, self._clock)

    def settle(self, label: str, charged_usd: Decimal) -> bool:
        """From now on the box has cost what its provider says; whether that is news.

        A box that may bill again is not settled.
        """
        with self._database.write() as session:
            box = session.get(InstanceRow, label)
            if box is None or box.state != AttemptState.GONE:
                return False
            add_booking(session, box, "destroy", self._clock)
            spent = sum((row.usd for row in session.exec(_of_label(box, SPENT))), ZERO)
            difference = charged_usd - spent
            if difference == 0 and _settled_at(session, box) is not None:
                return False
            session.add(_row(box, "settle", "settle", difference, self._clock.now()))
            return True

    def bills(self, since: datetime, but: Collection[str] = ()) -> list[Bill]:
        """Of the boxes that are gone since then, but those of some providers."""
        query = select(InstanceRow).where(
            InstanceRow.state == AttemptState.GONE,
            col(InstanceRow.gone_at) > since,
            col(InstanceRow.instance_id).is_not(None),
            col(InstanceRow.provider).not_in(list(but)),
        )
        with self._database.read() as session:
            return [bill for row in session.exec(query).all() if (bill := _bill(session, row))]

    def spent_usd(self, run_id: str) -> Decimal:
        return sum((row.usd for row in self.rows(run_id)), ZERO)

    def committed_usd(self, run_id: str, but_label: str = "") -> Decimal:
        """What the run has spent, what its attempts (but one) still hold reserved, and what may
        still be billed for any of them beside that.
        """
        with self._database.read() as session:
            return committed(session, run_id, but_label)

    def rooms(self, caps: Sequence[PeriodCap], but_label: str = "") -> list[Room]:
        """What each cap still lets through, the tightest first; all of one reservation counts as
        free that is named.
        """
        with self._database.read() as session:
            return rooms(session, caps, but_label)

    def usd_per_hour(self) -> Decimal:
        """Of everything that bills now, or may."""
        with self._database.read() as session:
            return _usd_per_hour(session)

    def rows(self, run_id: str) -> list[LedgerRow]:
        """What was booked as spent, the oldest first."""
        query = select(LedgerRow).where(LedgerRow.run_id == run_id, col(LedgerRow.kind).in_(SPENT))
        with self._database.read() as session:
            return list(session.exec(query.order_by(col(LedgerRow.id))))


def add_booking(session: Session, box: InstanceRow, phase: str, clock: Clock) -> Decimal:
    """Accrue since the last booking; part of the caller's transaction."""
    if box.sent_at is None or box.state in NEVER_BILLED:
        return ZERO
    last = session.exec(
        _of_label(box, ["accrue"]).order_by(col(LedgerRow.id).desc()).limit(1)
    ).first()
    since = last.at if last else box.sent_at
    until = box.gone_at or clock.now()
    if until <= since:
        return ZERO
    usd = cost(box.usd_per_hour, (until - since).total_seconds())
    row = _row(box, "accrue", phase, usd, until)
    row.since = since
    session.add(row)
    note_marks(session, box, clock)
    return usd


def add_reservation(
    session: Session, run_id: str, label: str, usd: Decimal, clock: Clock, caps: Caps
) -> None:
    """Reserve, or raise OverCap; part of the caller's transaction (I4)."""
    held, more = committed(session, run_id), usd + caps.beside_usd
    if held + more > caps.run_usd:
        raise OverCap(
            f"run {run_id} holds ${held:.2f} of budget.max_usd ${caps.run_usd:.2f}; another "
            f"${more:.2f} would pass it. Raise budget.max_usd, or shorten the run."
        )
    if caps.usd_per_hour is not None:
        billing = _usd_per_hour(session)
        if billing + caps.new_usd_per_hour > caps.usd_per_hour:
            raise over_rate(billing, caps.new_usd_per_hour, caps.usd_per_hour)
    for room in rooms(session, caps.periods):
        if more > room.left_usd:
            raise over_period(room, more)
    add_reserve(session, run_id, label, usd, clock)


def add_reserve(session: Session, run_id: str, label: str, usd: Decimal, clock: Clock) -> None:
    """What is reserved for it, whatever the caps say: of what exists already."""
    session.add(
        LedgerRow(run_id=run_id, label=label, at=clock.now(), kind="reserve", phase="", usd=usd)
    )


def release_reservation(session: Session, run_id: str, label: str, clock: Clock) -> Decimal:
    """Take back what is still reserved for this label, if anything is; returns how much."""
    rows = session.exec(
        select(LedgerRow).where(
            LedgerRow.label == label, col(LedgerRow.kind).in_(["reserve", "release"])
        )
    ).all()
    held = sum((row.usd for row in rows), ZERO)
    if held:
        session.add(
            LedgerRow(
                run_id=run_id, label=label, at=clock.now(), kind="release", phase="", usd=-held
            )
        )
    return held


def _usd_per_hour(session: Session) -> Decimal:
    live = select(InstanceRow).where(
        col(InstanceRow.state).not_in([state.value for state in SETTLED])
    )
    return sum((row.usd_per_hour for row in session.exec(live)), ZERO)


def committed(session: Session, run_id: str, but_label: str = "") -> Decimal:
    """What a run has spent, what its attempts but one hold reserved, what is held beside that."""
    boxes = {
        box.label: box
        for box in session.exec(select(InstanceRow).where(InstanceRow.run_id == run_id))
    }
    settled = {label for label, box in boxes.items() if _settled_at(session, box) is not None}
    total = ZERO
    for row in session.exec(select(LedgerRow).where(LedgerRow.run_id == run_id)):
        box = boxes.get(row.label)
        state = box.state if box else AttemptState.INTENT
        if row.kind == "hold":
            # The reservation holds the tail until it is released.
            due = state == AttemptState.GONE if row.phase == "tail" else state not in NEVER_MADE
            counts = due and row.label not in settled
        else:
            counts = row.kind in SPENT or row.label != but_label
        total += row.usd if counts else ZERO
    return total


def _bill(session: Session, box: InstanceRow) -> Bill | None:
    if box.sent_at is None or box.gone_at is None or box.instance_id is None:
        return None
    remarks = select(EventRow).where(
        EventRow.run_id == box.run_id, EventRow.label == box.label, EventRow.what == UNBILLED
    )
    return Bill(
        label=box.label,
        run_id=box.run_id,
        provider=box.provider,
        account_id=box.account_id,
        instance_id=box.instance_id,
        sent_at=box.sent_at,
        gone_at=box.gone_at,
        settled_at=_settled_at(session, box),
        given_up=session.exec(remarks).first() is not None,
    )


def _settled_at(session: Session, box: InstanceRow) -> datetime | None:
    """When its charge was last booked; None while it is not known, and once it is back."""
    if box.gone_at is None:
        return None
    settled = _of_label(box, ["settle"]).where(LedgerRow.at >= box.gone_at)
    last = session.exec(settled.order_by(col(LedgerRow.id).desc()).limit(1)).first()
    return last.at if last else None


def _row(box: InstanceRow, kind: str, phase: str, usd: Decimal, at: datetime) -> LedgerRow:
    return LedgerRow(run_id=box.run_id, label=box.label, at=at, kind=kind, phase=phase, usd=usd)


def _of_label(box: InstanceRow, kinds: Collection[str]) -> SelectOfScalar[LedgerRow]:
    """By its run first, which has an index."""
    return select(LedgerRow).where(
        LedgerRow.run_id == box.run_id,
        LedgerRow.label == box.label,
        col(LedgerRow.kind).in_(list(kinds)),
    )
