"""The ledger: append-only dollars, by phase.  A cap is checked in the transaction that reserves."""

from dataclasses import dataclass
from decimal import Decimal

from sqlmodel import Session, col, select

from gpurun.budget import cost
from gpurun.clock import Clock
from gpurun.errors import BudgetError
from gpurun.model import SETTLED, AttemptState
from gpurun.store.database import Database
from gpurun.store.tables import InstanceRow, LedgerRow

ZERO = Decimal(0)
NEVER_BILLED = (AttemptState.INTENT, AttemptState.REFUSED, AttemptState.EXPIRED)


class OverCap(BudgetError):
    """Together with what is already reserved this would cost more than a cap allows."""


@dataclass(frozen=True, slots=True)
class Caps:
    """What no reservation may pass: dollars of the run, $/h of everything at once."""

    run_usd: Decimal
    usd_per_hour: Decimal | None = None
    new_usd_per_hour: Decimal = ZERO


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
            if row is None or row.sent_at is None or row.state in NEVER_BILLED:
                return ZERO
            query = select(LedgerRow).where(LedgerRow.label == label, LedgerRow.kind == "accrue")
            last = session.exec(query.order_by(col(LedgerRow.id).desc())).first()
            since = last.at if last else row.sent_at
            until = row.gone_at or self._clock.now()
            if until <= since:
                return ZERO
            usd = cost(row.usd_per_hour, (until - since).total_seconds())
            session.add(
                LedgerRow(
                    run_id=row.run_id,
                    label=label,
                    at=until,
                    kind="accrue",
                    phase=phase,
                    usd=usd,
                    since=since,
                )
            )
            return usd

    def settle(self, run_id: str, label: str, usd: Decimal) -> None:
        """The difference to what the provider charged in the end."""
        with self._database.write() as session:
            session.add(
                LedgerRow(
                    run_id=run_id,
                    label=label,
                    at=self._clock.now(),
                    kind="settle",
                    phase="settle",
                    usd=usd,
                )
            )

    def spent_usd(self, run_id: str) -> Decimal:
        return sum((row.usd for row in self.rows(run_id)), ZERO)

    def committed_usd(self, run_id: str, but_label: str = "") -> Decimal:
        """What the run has spent, and what its attempts (but one) still hold reserved."""
        query = select(LedgerRow).where(LedgerRow.run_id == run_id)
        with self._database.read() as session:
            return sum(
                (
                    row.usd
                    for row in session.exec(query)
                    if row.kind in ("accrue", "settle") or row.label != but_label
                ),
                ZERO,
            )

    def rows(self, run_id: str) -> list[LedgerRow]:
        """What was booked as spent, the oldest first."""
        query = select(LedgerRow).where(
            LedgerRow.run_id == run_id, col(LedgerRow.kind).in_(["accrue", "settle"])
        )
        with self._database.read() as session:
            return list(session.exec(query.order_by(col(LedgerRow.id))))


def add_reservation(
    session: Session, run_id: str, label: str, usd: Decimal, clock: Clock, caps: Caps
) -> None:
    """Reserve, or raise OverCap; part of the caller's transaction (I4)."""
    rows = session.exec(select(LedgerRow).where(LedgerRow.run_id == run_id)).all()
    held = sum((row.usd for row in rows), ZERO)
    if held + usd > caps.run_usd:
        raise OverCap(
            f"run {run_id} holds ${held:.2f} of budget.max_usd ${caps.run_usd:.2f}; another "
            f"${usd:.2f} would pass it. Raise budget.max_usd, or shorten the run."
        )
    if caps.usd_per_hour is not None:
        live = session.exec(
            select(InstanceRow).where(col(InstanceRow.state).not_in([s.value for s in SETTLED]))
        ).all()
        rate = sum((row.usd_per_hour for row in live), caps.new_usd_per_hour)
        if rate > caps.usd_per_hour:
            raise OverCap(
                f"all boxes together would cost ${rate:.2f}/h; max_concurrent_usd_per_hour is "
                f"${caps.usd_per_hour:.2f}. Wait for a run to end (`gpurun status`), or raise it."
            )
    session.add(
        LedgerRow(run_id=run_id, label=label, at=clock.now(), kind="reserve", phase="", usd=usd)
    )


def release_reservation(session: Session, run_id: str, label: str, clock: Clock) -> None:
    """Take back what is still reserved for this label; harmless when nothing is."""
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
