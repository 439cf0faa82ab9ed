"""What may be billed beside a rate: held until the provider has said what it charged."""

from decimal import Decimal

from sqlmodel import Session, select

from gpurun.budget import cost
from gpurun.clock import Clock
from gpurun.store.tables import InstanceRow, LedgerRow

ZERO = Decimal(0)


def lacking(
    session: Session, label: str, tail_s: float, traffic_usd: Decimal
) -> dict[str, Decimal]:
    """By phase, what is still to be held for a tail of so long and for so much traffic."""
    box = session.get(InstanceRow, label)
    if box is None:
        return {}
    wanted = {"tail": cost(box.usd_per_hour, tail_s), "traffic": traffic_usd}
    held = {phase: _held(session, box, phase) for phase in wanted}
    return {phase: usd - held[phase] for phase, usd in wanted.items() if usd > held[phase]}


def add_hold(
    session: Session, run_id: str, label: str, phase: str, usd: Decimal, clock: Clock
) -> None:
    """Part of the caller's transaction."""
    if usd > 0:
        at = clock.now()
        session.add(LedgerRow(run_id=run_id, label=label, at=at, kind="hold", phase=phase, usd=usd))


def held_for_traffic(session: Session, box: InstanceRow) -> Decimal:
    return _held(session, box, "traffic")


def _held(session: Session, box: InstanceRow, phase: str) -> Decimal:
    query = select(LedgerRow).where(
        LedgerRow.run_id == box.run_id,  # by its run first, which has an index
        LedgerRow.label == box.label,
        LedgerRow.kind == "hold",
        LedgerRow.phase == phase,
    )
    return sum((row.usd for row in session.exec(query)), ZERO)
