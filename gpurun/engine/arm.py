"""ARM and EXTEND (protocol 3): the timer that ends the training, on every guard, then launch."""

from gpurun import budget as money
from gpurun.clock import after
from gpurun.engine.context import Context
from gpurun.engine.guarding import Others, last_words
from gpurun.errors import PhaseFailed, ProviderError, UsageError
from gpurun.model import Attempt, Timer
from gpurun.signals import Told
from gpurun.store.ledger import Caps
from gpurun.store.timers import Moved
from gpurun.timers import ends_in_s, fires_in_s, timer_for

ARM_TRIES = 3


def arm_run(ctx: Context, attempt: Attempt, guards: Others) -> Timer:
    """ARM; once more when `gpurun extend` moved the setup timer meanwhile."""
    for _ in range(ARM_TRIES):
        try:
            if timer := _arm_run(ctx, attempt, guards):
                return timer
        except Moved:
            continue
        if ctx.journal.runs.get(ctx.run.id).ending is not None:
            raise Told  # the setup timer fired meanwhile
    raise PhaseFailed("the run timer could not be put in force; training was not launched")


def _arm_run(ctx: Context, attempt: Attempt, guards: Others) -> Timer | None:
    """A1-A5: the run timer replaces the setup timer; no launch under an older one."""
    timers = ctx.journal.timers
    now = ctx.clock.now()
    spent = ctx.journal.ledger.committed_usd(ctx.run.id, but_label=attempt.label)
    ends = money.run_timer(now, ctx.budget, attempt.usd_per_hour, spent, ctx.cloud.traits)
    timer = timer_for(
        attempt.label,
        timers.last_seq(attempt.label) + 1,
        "run",
        ends.fires_at,
        ends.ends_at,
        ctx.clock,
    )
    _arming(ctx, attempt, timer)
    ctx.trace(attempt, timer, attempt.state.value)
    if guards.scheduled is not None:
        guards.scheduled.arm(timer)
    if guards.fuse is not None:
        guards.fuse.arm(timer, last_words())
    if not timers.put_in_force(timer):
        return None
    guards.require(timer)
    return timer


def extend(ctx: Context, attempt: Attempt, guards: Others, seconds: float) -> Timer:
    """EXTEND: provider, fuse, keeper, in this order; refused when it cannot be paid for.

    ProviderError: the keeper holds the new timer, another guard may end the box sooner.
    """
    timers = ctx.journal.timers
    old = timers.of(attempt.label)
    if old is None or ctx.run.ending is not None:
        raise UsageError(f"run {ctx.run.id} is ending; it cannot be extended")
    now = ctx.clock.now()
    fires_at = after(now, fires_in_s(old, ctx.clock) + seconds)
    ends_at = after(now, ends_in_s(old, ctx.clock) + seconds)
    if guards.scheduled and (near := guards.scheduled.fires_too_soon(old, now)):
        raise UsageError(
            f"run {ctx.run.id}: the timer at {ctx.cloud.name} fires at {near:%H:%M} UTC, too soon "
            "to be moved surely; nothing was changed"
        )
    seq = timers.last_seq(attempt.label) + 1
    timer = timer_for(attempt.label, seq, old.kind, fires_at, ends_at, ctx.clock)
    _arming(ctx, attempt, timer)
    ctx.trace(attempt, timer, attempt.state.value)
    lag = guards.scheduled.arm(timer) if guards.scheduled else ""
    held = guards.fuse.arm(timer, last_words()) if guards.fuse else None
    if not timers.put_in_force(timer):
        raise UsageError(f"run {ctx.run.id}: its timer has just fired; it cannot be extended")
    until = f"the keeper now ends run {ctx.run.id} at {ends_at:%H:%M} UTC"
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
    return timer


def _may_still_fire(ctx: Context, label: str) -> bool:
    """Whether an older timer was last read to be held at the provider."""
    words = {word.name: word for word in ctx.journal.timers.guards_of(label)}
    return "provider" in words and words["provider"].ends_at_read is not None


def _arming(ctx: Context, attempt: Attempt, timer: Timer) -> None:
    """A1: the timer is on disk, and paid for, before any guard hears of it."""
    ends = money.Deadlines(timer.fires_at, timer.ends_at, attempt.ceiling_at)
    reserve = money.ceiling_usd(attempt.usd_per_hour, ctx.clock.now(), ends, ctx.cloud.traits)
    ctx.journal.timers.arming(timer, ctx.run.id, ctx.epoch, reserve, Caps(ctx.budget.max_usd))
