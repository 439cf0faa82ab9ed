"""What of a run's money was wasted.

Wasted is all that was paid but for the setup, data, training and collecting of a box that took a
step, and for the look at it that was asked for (keep): so the waiting for boxes and their checks
(rent, boot, accept), boxes that ended before their first step, the time in which a training stood
still or its GPUs were idle before its end, and the ends of boxes (destroy, tail).
"""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from gpurun.budget import cost
from gpurun.glance import money
from gpurun.glance.reader import Row
from gpurun.glance.rows import Parts, instant, parsed
from gpurun.model import SETTLED

ZERO = Decimal(0)
TRAIN, IDLE, SETTLE = "train", "idle", "settle"
WHY = {  # by phase, of a box that took a step
    "rent": "waiting",
    "boot": "waiting",
    "accept": "waiting",
    IDLE: "idle",
    "destroy": "ending",
    "tail": "ending",
}
NO_STEP = "no_step"
WHYS = (NO_STEP, "waiting", "idle", "ending")
LEAST_IDLE_S = 60.0

Spent = dict[str, dict[str, Decimal]]  # by label and phase


def spent(parts: Parts, now: datetime) -> Spent:
    """As `money.by_box`, with `idle` as a phase of its own, taken out of `train`."""
    found = money.by_box(parts, now)
    label, seconds = idle(parts)
    if seconds:
        box = found[label]
        rate = next(row for row in parts.attempts if row["label"] == label).get("usd_per_hour")
        usd = min(cost(money.dollars(rate), seconds), box[TRAIN])
        box[TRAIN] -= usd
        box[IDLE] = usd
    return found


def idle(parts: Parts) -> tuple[str, float]:
    """The box that trained, and how long it had been of no use when its training ended.

    As far as somebody watched: what nobody has seen was not idle.
    """
    booked = [row for row in parts.ledger if _is_training(row) and instant(row.get("at"))]
    labels = {row["label"] for row in parts.attempts}
    last = max(booked, key=lambda row: float(row["at"]), default=None)
    if last is None or last["label"] not in labels or parts.run.get("ending") is None:
        return "", 0.0
    ended_at, progress = instant(last["at"]), parsed(parts.run.get("progress_json"), {})
    since, kept = _iso(progress.get("idle_since")), progress.get("kept")
    seconds = 0.0
    if since is not None and ended_at is not None:
        seconds = (ended_at - since).total_seconds()
    elif isinstance(kept, dict) and isinstance(kept.get("idle_s"), int | float):
        seconds = float(kept["idle_s"])
    return last["label"], seconds if LEAST_IDLE_S <= seconds < float("inf") else 0.0


def document(parts: Parts, boxes: Spent, total_usd: Decimal) -> dict[str, Any]:
    """Of a run that has cost `total_usd` whole cents."""
    exact = wasted(parts, boxes)
    usd = min(money.nearest(sum(exact.values(), ZERO)), total_usd)
    by_why = money.in_cents(exact, usd)
    return {
        "usd": f"{usd:.2f}",
        "share": money.share(usd, total_usd),
        **{f"{why}_usd": f"{by_why[why]:.2f}" for why in WHYS},
    }


def wasted(parts: Parts, boxes: Spent) -> dict[str, Decimal]:
    """Exact dollars by why: one of WHYS.

    Of a box that has not ended the best is assumed.  What its provider charged in the end, more or
    less than was accrued, is shared by what it was paid for.
    """
    found = dict.fromkeys(WHYS, ZERO)
    for label, usd in boxes.items():
        for why, part in wasted_on(parts, label, usd).items():
            found[why] += part
    return found


def wasted_on(parts: Parts, label: str, usd: Mapping[str, Decimal]) -> dict[str, Decimal]:
    """Of one box, exact, by why; nothing that its provider has taken back."""
    total = sum(usd.values(), ZERO)
    if not _took_a_step(parts, label, usd):
        return {NO_STEP: total} if total > 0 else {}
    settled = usd.get(SETTLE, ZERO)
    before = total - settled
    found: dict[str, Decimal] = {}
    for phase, part in usd.items():
        if phase in WHY:
            charged = part * total / before if settled and before > 0 else part
            found[WHY[phase]] = found.get(WHY[phase], ZERO) + charged
    return {why: part for why, part in found.items() if part > 0}


def wasted_in(parts: Parts, label: str, usd: Mapping[str, Decimal]) -> dict[str, Decimal]:
    """The same by phase; of the difference to what was charged, its share."""
    if not _took_a_step(parts, label, usd):
        return dict(usd)
    found = {phase: part for phase, part in usd.items() if phase in WHY}
    if settled := usd.get(SETTLE, ZERO):
        before = sum(usd.values(), ZERO) - settled
        found[SETTLE] = settled * sum(found.values(), ZERO) / before if before > 0 else ZERO
    return found


def _took_a_step(parts: Parts, label: str, usd: Mapping[str, Decimal]) -> bool:
    """Whether it is known to have, or can be assumed to."""
    state = next((row.get("state") for row in parts.attempts if row["label"] == label), None)
    if state not in SETTLED:
        return True
    if TRAIN not in usd and IDLE not in usd:
        return False
    if parts.run.get("ending") != "failed":
        return True
    progress = parsed(parts.run.get("progress_json"), {})
    step = progress.get("step")
    if isinstance(step, int | float) and step > 0:
        return True
    interactive = parsed(parts.run.get("recipe_json"), {}).get("train", True) is None
    return bool(progress.get("last_checkpoint_at")) or interactive


def _is_training(row: Row) -> bool:
    return row.get("kind") == "accrue" and row.get("phase") == TRAIN


def _iso(text: Any) -> datetime | None:
    try:
        at = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return at if at is not None and at.tzinfo is not None else None
