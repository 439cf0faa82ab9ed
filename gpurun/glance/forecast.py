"""When a training will be done, for how much, and what its timer will cut off of it."""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from gpurun.budget import LONGEST_S, cost
from gpurun.glance import money
from gpurun.glance.rows import iso
from gpurun.model import RunState

Document = dict[str, Any]


def forecast(
    state: str,
    train: Document | None,
    rate: Decimal | None,
    fires_at: datetime | None,
    now: datetime,
) -> Document | None:
    """None while nothing can be said, and once nothing is to come."""
    eta_s = train["eta_s"] if train else None
    if state != RunState.ACTIVE or not isinstance(eta_s, int | float) or fires_at is None:
        return None
    if train is None or not 0 <= eta_s <= LONGEST_S:
        return None
    finish_at = now + timedelta(seconds=eta_s)
    late_s = max(0.0, (finish_at - fires_at).total_seconds())
    usd_per_hour = rate or Decimal(0)
    return {
        "finish_at": iso(finish_at),
        "usd_to_finish": str(money.cents(cost(usd_per_hour, eta_s))),
        "before_timer": finish_at <= fires_at,
        "late_s": round(late_s, 1),
        "usd_late": str(money.cents(cost(usd_per_hour, late_s))),
        "step_at_timer": _step_at_timer(train, eta_s, late_s),
    }


def projected(
    spent: Decimal,
    rate: Decimal | None,
    forecast: Document | None,
    ends_at: datetime | None,
    now: datetime,
) -> Decimal:
    """Spent, and the rate until the box is expected to go: at its finish, at its timer at last."""
    ends = [ends_at] if ends_at else []
    if forecast:
        ends.append(datetime.fromisoformat(forecast["finish_at"]))
    if rate is None or not ends:
        return spent
    return spent + cost(rate, max(0.0, min((at - now).total_seconds() for at in ends)))


def _step_at_timer(train: Document, eta_s: float, late_s: float) -> int | None:
    """How far it will be; evaluations to come are spread over the steps to come."""
    step, total = train["step"], train["total_steps"]
    if not (isinstance(step, int | float) and isinstance(total, int | float)) or eta_s <= 0:
        return None
    left_s = max(0.0, eta_s - late_s)
    return int(step + max(0, total - step) * left_s / eta_s)
