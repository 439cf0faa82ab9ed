"""EXTEND (protocol 3): the timer of a live run moved later, on every guard, within its money."""

import math
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from gpurun import budget as money
from gpurun.clock import after
from gpurun.engine.arm import arming, left_usd
from gpurun.engine.context import Context
from gpurun.engine.guarding import Others, last_words
from gpurun.engine.limits import OF_RUN, period_caps, tightest_of
from gpurun.errors import BudgetError, ProviderError, UsageError
from gpurun.guards import AtProvider
from gpurun.model import Attempt, Timer
from gpurun.timers import ends_in_s, fires_in_s, timer_for

KINDS = ("setup", "run")  # what is ending, or kept after its failure, is not taken back


@dataclass(frozen=True, slots=True)
class Extension:
    """A later timer, and the most that the run may cost with it."""

    fires_at: datetime
    ends_at: datetime
    ceiling_usd: Decimal
    budget_usd: Decimal


def extension(ctx: Context, attempt: Attempt, seconds: float) -> Extension:
    """What `extend` would do; UsageError or BudgetError where it would not.  Changes nothing."""
    old, now = _old(ctx, attempt), ctx.clock.now()
    fires_at = after(now, fires_in_s(old, ctx.clock) + seconds)
    ends_at = after(now, ends_in_s(old, ctx.clock) + seconds)
    if (ends_at - now).total_seconds() > money.LONGEST_S:
        raise UsageError(
            f"run {ctx.run.id} would go on for more than 90 days: nothing was changed. "
            "Extend it by less."
        )
    ends = money.Deadlines(fires_at, ends_at, ends_at)
    needs = money.ceiling_usd(attempt.usd_per_hour, now, ends, ctx.cloud.traits)
    left = max(left_usd(ctx, attempt), Decimal(0))
    if needs > left:
        spare_s = seconds - float((needs - left) / attempt.usd_per_hour * 3600)
        raise _too_dear(ctx, attempt, needs, spare_s)
    spent = ctx.journal.ledger.committed_usd(ctx.run.id, but_label=attempt.label)
    return Extension(fires_at, ends_at, spent + needs, ctx.budget.max_usd)


def extend(ctx: Context, attempt: Attempt, guards: Others, seconds: float) -> Extension:
    """Provider, fuse, keeper, in this order; refused when it cannot be paid for.

    ProviderError: the keeper holds the new timer, another guard may end the box sooner.
    """
    timers, old = ctx.journal.timers, _old(ctx, attempt)
    wanted = extension(ctx, attempt, seconds)
    if guards.scheduled is not None:
        _refuse_too_late(ctx, guards.scheduled, old)
    seq = timers.last_seq(attempt.label) + 1
    timer = timer_for(attempt.label, seq, old.kind, wanted.fires_at, wanted.ends_at, ctx.clock)
    arming(ctx, attempt, timer)
    lag = guards.scheduled.arm(timer) if guards.scheduled else ""
    held = guards.fuse.arm(timer, last_words()) if guards.fuse else None
    if not timers.put_in_force(timer):
        raise UsageError(
            f"run {ctx.run.id}: its timer has just fired, or was moved by its price; see "
            f"`gpurun status {ctx.run.id}`"
        )
    until = f"the keeper now ends run {ctx.run.id} at {wanted.ends_at:%H:%M} UTC"
    again = f"`gpurun status {ctx.run.id}` shows the earliest"
    if guards.fuse is not None and not (held and held.holds(timer.seq)):
        raise ProviderError(
            f"{until}, but its fuse did not take that timer and may end it sooner: {again}; "
            f"`gpurun extend {ctx.run.id} 1m` arms both."
        )
    if lag and _may_still_fire(ctx, attempt.label):
        raise ProviderError(
            f"{until}, but the timer at {ctx.cloud.name} may still end it sooner ({lag}): {again}; "
            "the keeper moves it as soon as it can."
        )
    return wanted


def _old(ctx: Context, attempt: Attempt) -> Timer:
    old = ctx.journal.timers.of(attempt.label)
    if old is None or ctx.run.ending is not None or old.kind not in KINDS:
        kept = old is not None and old.kind == "keep"
        what = "has failed, and is kept for a look" if kept else "is ending"
        raise UsageError(
            f"run {ctx.run.id} {what}: it cannot be extended; `gpurun status {ctx.run.id}` says "
            "until when its box is there"
        )
    return old


def _refuse_too_late(ctx: Context, scheduled: AtProvider, old: Timer) -> None:
    """F27: just before it fires it can no longer be moved surely."""
    try:
        near = scheduled.fires_too_soon(old, ctx.clock.now())
    except ProviderError as error:
        raise ProviderError(
            f"run {ctx.run.id}: its timer at {ctx.cloud.name} cannot be read now: nothing was "
            f"changed; try again. {error}"
        ) from error
    if near is not None:
        raise UsageError(
            f"run {ctx.run.id}: the timer at {ctx.cloud.name} fires at {near:%H:%M} UTC, too soon "
            "to be moved surely; nothing was changed"
        )


def _too_dear(ctx: Context, attempt: Attempt, needs_usd: Decimal, spare_s: float) -> BudgetError:
    """Which cap it is, and how much longer the run may be with it."""
    ledger, run = ctx.journal.ledger, ctx.run.id
    caps = period_caps(ctx.settings, ctx.cloud.name, ctx.clock.now())
    rooms = ledger.rooms(caps, but_label=attempt.label)
    of_run = ctx.budget.max_usd - ledger.committed_usd(run, but_label=attempt.label)
    tight = tightest_of(ctx.budget, max(of_run, Decimal(0)), rooms)
    minutes = math.floor(spare_s / 60)
    less = f"At most: `gpurun extend {run} {minutes}m`." if minutes > 0 else "No minute is left."
    more = f" Or raise {tight.name} in the settings." if tight.name != OF_RUN else ""
    return BudgetError(
        f"run {run} would need ${needs_usd:.2f} from now on, and ${tight.left_usd:.2f} are left of "
        f"{tight.name} ${tight.usd:.2f}: nothing was changed. {less}{more}"
    )


def _may_still_fire(ctx: Context, label: str) -> bool:
    """Whether an older timer was last read to be held at the provider."""
    words = {word.name: word for word in ctx.journal.timers.guards_of(label)}
    return "provider" in words and words["provider"].ends_at_read is not None
