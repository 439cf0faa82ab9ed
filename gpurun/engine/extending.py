"""EXTEND (protocol 3): the timer of a live run moved later, on every guard, within its money."""

import math
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_CEILING, Decimal

from gpurun import budget as money
from gpurun.clock import after
from gpurun.engine.arm import arming, left_usd
from gpurun.engine.ceiling import raised, refuse_beyond_wallet
from gpurun.engine.context import Context
from gpurun.engine.guarding import Others, last_words
from gpurun.engine.limits import OF_RUN, period_caps, tightest_of
from gpurun.errors import BudgetError, ProviderError, UsageError
from gpurun.guards import AtProvider
from gpurun.keeper.lagging import laggard
from gpurun.model import Attempt, Timer
from gpurun.shell.trouble import HostKeyChanged
from gpurun.timers import ends_in_s, fires_in_s, timer_for

NO_GUARD = ("refused", "disarmed")
KINDS = ("setup", "run")  # what is ending, or kept after its failure, is not taken back


@dataclass(frozen=True, slots=True)
class Extension:
    """A later timer, and the most that the run may cost with it."""

    fires_at: datetime
    ends_at: datetime
    ceiling_usd: Decimal
    budget_usd: Decimal
    budget_before_usd: Decimal


def extension(
    ctx: Context, attempt: Attempt, seconds: float, max_usd: Decimal | None = None
) -> Extension:
    """What `extend` would do; UsageError or BudgetError where it would not.  Changes nothing.

    `max_usd`: what the run may cost at most from then on.
    """
    before_usd, ctx = ctx.budget.max_usd, raised(ctx, max_usd)
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
    if max_usd is not None:
        refuse_beyond_wallet(ctx, needs)
    spent = ctx.journal.ledger.committed_usd(ctx.run.id, but_label=attempt.label)
    return Extension(fires_at, ends_at, spent + needs, ctx.budget.max_usd, before_usd)


def extend(
    ctx: Context,
    attempt: Attempt,
    guards: Others,
    seconds: float,
    max_usd: Decimal | None = None,
) -> Extension:
    """Provider, fuse, keeper, in this order; refused when it cannot be paid for.

    ProviderError: the keeper holds the new timer, another guard does not, or may not.
    """
    timers, old = ctx.journal.timers, _old(ctx, attempt)
    wanted = extension(ctx, attempt, seconds, max_usd)
    if guards.scheduled is not None:
        _refuse_too_late(ctx, guards.scheduled, old)
    seq = timers.last_seq(attempt.label) + 1
    timer = timer_for(attempt.label, seq, old.kind, wanted.fires_at, wanted.ends_at, ctx.clock)
    arming(raised(ctx, max_usd), attempt, timer)
    _arm_others(guards, timer)
    if not timers.put_in_force(timer):
        raise UsageError(
            f"run {ctx.run.id}: its timer has just fired, or was moved by its price; see "
            f"`gpurun status {ctx.run.id}`"
        )
    _require_all(ctx, attempt, guards, timer)
    return wanted


def _arm_others(guards: Others, timer: Timer) -> None:
    """What became of it, the journal says: none of them keeps the keeper from its timer."""
    if guards.scheduled is not None:
        guards.scheduled.arm(timer)
    if guards.fuse is not None:
        with suppress(ProviderError, HostKeyChanged, OSError):
            guards.fuse.arm(timer, last_words())


def _require_all(ctx: Context, attempt: Attempt, guards: Others, timer: Timer) -> None:
    """ProviderError where one does not hold it: which, and what ends the box then (I9)."""
    asked = {"fuse": guards.fuse, "provider": guards.scheduled}
    words = [word for word in ctx.journal.timers.guards_of(attempt.label) if asked.get(word.name)]
    late = [w for w in words if w.state not in NO_GUARD and w.seq_read != timer.seq]
    if not late:
        return
    run, names = ctx.run.id, {"fuse": "fuse", "provider": f"timer at {ctx.cloud.name}"}
    first, now = laggard(timer, late, ctx.clock), ctx.clock.now()
    missed = " and ".join(f"its {names[word.name]}" for word in late)
    if first is None:
        raise ProviderError(
            f"the keeper now ends run {run} at {timer.ends_at:%H:%M} UTC, but {missed} could not "
            "be told: until the keeper has armed it again the run has a guard less. "
            f"`gpurun status {run}` shows each guard."
        )
    spent_usd = ctx.journal.ledger.committed_usd(run, but_label=attempt.label)
    billed_s = (first.acts_at - now).total_seconds() + ctx.cloud.traits.tail_s
    usd = spent_usd + money.cost(attempt.usd_per_hour, billed_s)
    sooner = math.ceil((timer.ends_at - first.ends_at).total_seconds() / 60)
    it = "it" if len(late) == 1 else "the first"
    raise ProviderError(
        f"the keeper now ends run {run} at {timer.ends_at:%H:%M} UTC, but {missed} could not be "
        f"told: {it} fires at {first.acts_at:%H:%M} UTC, so the run ends at "
        f"{first.ends_at:%H:%M} UTC, {sooner} minutes sooner, for ${usd:.2f} at most. The keeper "
        f"tries again every few seconds: `gpurun status {run}` shows what ends it."
    )


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
    enough = (ctx.budget.max_usd - of_run + needs_usd).to_integral_value(ROUND_CEILING)
    more = f" Or raise {tight.name} in the settings."
    if tight.name == OF_RUN:
        more = f" Or give it more: `gpurun extend {run} TIME --max-usd {enough}`."
    return BudgetError(
        f"run {run} would need ${needs_usd:.2f} from now on, and ${tight.left_usd:.2f} are left of "
        f"{tight.name} ${tight.usd:.2f}: nothing was changed. {less}{more}"
    )
