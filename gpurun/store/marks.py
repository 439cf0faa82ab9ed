"""Half of a run's money is spent, four fifths, nearly all: an event each, once for a budget."""

import json
from decimal import Decimal, InvalidOperation

from sqlalchemy import text
from sqlmodel import Session, col, select

from gpurun.clock import Clock
from gpurun.marks import MARKS, counted_holds, passed
from gpurun.store.tables import EventRow, InstanceRow, RunRow

EXACT_TO = Decimal("0.000001")
_BOXES = text(
    """
    SELECT i.state,
      SUM((l.kind IN ('accrue', 'settle')) * CAST(l.usd AS REAL)) AS spent,
      SUM((l.kind = 'hold' AND l.phase = 'tail') * CAST(l.usd AS REAL)) AS tail,
      SUM((l.kind = 'hold' AND l.phase = 'traffic') * CAST(l.usd AS REAL)) AS traffic,
      MAX(l.kind = 'settle' AND l.at >= i.gone_at) AS settled
    FROM instances i CROSS JOIN ledger l ON l.run_id = i.run_id AND l.label = i.label
    WHERE i.run_id = :run GROUP BY i.label
    """
)


def note_marks(session: Session, box: InstanceRow, clock: Clock) -> None:
    """Part of the transaction that books: what is shown then, and no more."""
    run = session.get(RunRow, box.run_id)
    max_usd = None if run is None else max_usd_of(run)
    if not max_usd:
        return
    session.flush()
    spent = _spent(session, box.run_id)
    last = passed(spent, max_usd)
    for what in [f"{mark}%" for mark in MARKS if mark <= last]:
        of = f"of budget.max_usd ${max_usd:.2f} are spent"
        known = select(EventRow.id).where(
            EventRow.run_id == box.run_id, EventRow.what == what, col(EventRow.detail).endswith(of)
        )
        if session.exec(known).first() is None:
            detail, at = f"${spent:.2f} {of}", clock.now()
            session.add(EventRow(at=at, run_id=box.run_id, who="store", what=what, detail=detail))


def max_usd_of(run: RunRow) -> Decimal | None:
    """None of a damaged row."""
    return of_budget(run, "max_usd")


def of_budget(run: RunRow, key: str) -> Decimal | None:
    """An amount of the recipe's budget; None of a damaged row."""
    try:
        return Decimal(str(json.loads(run.recipe_json)["budget"][key]))
    except (ValueError, KeyError, TypeError, InvalidOperation):
        return None


def _spent(session: Session, run_id: str) -> Decimal:
    usd = 0.0
    for box in session.connection().execute(_BOXES, {"run": run_id}).mappings():
        holds = () if box["settled"] else counted_holds(box["state"])
        usd += box["spent"] + sum(box[phase] for phase in holds)
    return Decimal(repr(usd)).quantize(EXACT_TO)
