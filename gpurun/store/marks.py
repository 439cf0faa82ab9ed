"""Half of a run's money is spent, four fifths, nearly all: an event each, once."""

import json
from decimal import Decimal, InvalidOperation

from sqlalchemy import text
from sqlmodel import Session, select

from gpurun.clock import Clock
from gpurun.store.tables import EventRow, InstanceRow, RunRow

MARKS = (50, 80, 95)  # percent of budget.max_usd
_SPENT = text(
    "SELECT SUM(CAST(usd AS REAL)) FROM ledger WHERE run_id = :run AND kind IN ('accrue', 'settle')"
)


def note_marks(session: Session, box: InstanceRow, clock: Clock) -> None:
    """Part of the transaction that books."""
    run = session.get(RunRow, box.run_id)
    max_usd = None if run is None else max_usd_of(run)
    if not max_usd:
        return
    session.flush()
    spent = session.connection().execute(_SPENT, {"run": box.run_id}).scalar() or 0.0
    passed = [mark for mark in MARKS if spent * 100 >= float(max_usd) * mark]
    for what in [f"{mark}%" for mark in passed]:
        known = select(EventRow.id).where(EventRow.run_id == box.run_id, EventRow.what == what)
        if session.exec(known).first() is None:
            detail = f"${spent:.2f} of budget.max_usd ${max_usd:.2f} are spent"
            at = clock.now()
            session.add(EventRow(at=at, run_id=box.run_id, who="store", what=what, detail=detail))


def max_usd_of(run: RunRow) -> Decimal | None:
    """None of a damaged row."""
    try:
        return Decimal(str(json.loads(run.recipe_json)["budget"]["max_usd"]))
    except (ValueError, KeyError, TypeError, InvalidOperation):
        return None
