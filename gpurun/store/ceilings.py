"""What a run may cost at most, after it has begun: raised by `extend`, never by itself."""

import json
from datetime import datetime
from decimal import Decimal

from sqlmodel import Session

from gpurun.clock import Clock
from gpurun.store.marks import max_usd_of
from gpurun.store.tables import EventRow, InstanceRow, RunRow

RAISED = "raised"


def raise_ceiling(
    session: Session, run: RunRow, label: str, max_usd: Decimal, ends_at: datetime, clock: Clock
) -> None:
    """Part of the transaction that reserves by it; a ceiling that is not higher changes nothing."""
    box = session.get_one(InstanceRow, label)
    box.ceiling_at = max(box.ceiling_at, ends_at)
    session.add(box)
    before = max_usd_of(run)
    if before is None or max_usd <= before:
        return
    recipe = json.loads(run.recipe_json)
    recipe["budget"]["max_usd"] = str(max_usd)
    run.recipe_json = json.dumps(recipe)
    session.add(run)
    detail = f"budget.max_usd from ${before:.2f} to ${max_usd:.2f}, by gpurun extend"
    at = clock.now()
    session.add(
        EventRow(at=at, run_id=run.id, label=label, who="store", what=RAISED, detail=detail)
    )
