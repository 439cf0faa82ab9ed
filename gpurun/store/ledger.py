"""The ledger: append-only dollars, by phase.  A cap is checked in the transaction that reserves."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlmodel import Session, col, select

from gpurun.clock import Clock
from gpurun.errors import BudgetError
from gpurun.model import SETTLED
from gpurun.store.database import Database
from gpurun.store.tables import InstanceRow, LedgerRow

ZERO = Decimal(0)


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

    def accrue(self, run_id: str, label: str, phase: str, usd: Decimal, since: datetime) -> None:
        """What the box has cost from `since` until now, in this phase."""
        self._append(run_id, label, "accrue", phase, usd, since)

    def settle(self, run_id: str, label: str, usd: Decimal) -> None:
        """The difference to what the provider charged in the end."""
        self._append(run_id, label, "settle", "settle", usd, None)

    def spent_usd(self, run_id: str) -> Decimal:
        return sum((row.usd for row in self.rows(run_id)), ZERO)

    def accrued_until(self, label: str) -> datetime | None:
        """The end of the last stretch that was booked for this label."""
        query = select(LedgerRow).where(LedgerRow.label == label, LedgerRow.kind == "accrue")
        with self._database.read() as session:
            last = session.exec(query.order_by(col(LedgerRow.id).desc())).first()
            return None if last is None else last.at

    def by_phase(self, run_id: str) -> dict[str, Decimal]:
        sums: dict[str, Decimal] = {}
        for row in self.rows(run_id):
            sums[row.phase] = sums.get(row.phase, ZERO) + row.usd
        return sums

    def rows(self, run_id: str) -> list[LedgerRow]:
        """What was booked as spent, the oldest first."""
        query = select(LedgerRow).where(
            LedgerRow.run_id == run_id, col(LedgerRow.kind).in_(["accrue", "settle"])
        )
        with self._database.read() as session:
            return list(session.exec(query.order_by(col(LedgerRow.id))))

    def _append(
        self,
        run_id: str,
        label: str,
        kind: str,
        phase: str,
        usd: Decimal,
        since: datetime | None,
    ) -> None:
        with self._database.write() as session:
            session.add(
                LedgerRow(
                    run_id=run_id,
                    label=label,
                    at=self._clock.now(),
                    kind=kind,
                    phase=phase,
                    usd=usd,
                    since=since,
                )
            )


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
