"""ARM (protocol 3): the timer that ends the training, on every guard, then launch."""

from decimal import Decimal

from gpurun import budget as money
from gpurun.engine.ceiling import as_raised
from gpurun.engine.context import Context
from gpurun.engine.guarding import Others, last_words
from gpurun.engine.limits import caps_of
from gpurun.errors import PhaseFailed
from gpurun.model import Attempt, Timer
from gpurun.signals import Told
from gpurun.store.timers import Moved
from gpurun.timers import timer_for

ARM_TRIES = 3


def arm_run(ctx: Context, attempt: Attempt, guards: Others) -> Timer:
    """ARM; once more when `gpurun extend` moved the setup timer meanwhile."""
    for _ in range(ARM_TRIES):
        try:
            if timer := _arm_run(as_raised(ctx), attempt, guards):
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
    spent = ctx.budget.max_usd - left_usd(ctx, attempt)
    ends = money.run_timer(now, ctx.budget, attempt.usd_per_hour, spent, ctx.cloud.traits)
    timer = timer_for(
        attempt.label,
        timers.last_seq(attempt.label) + 1,
        "run",
        ends.fires_at,
        ends.ends_at,
        ctx.clock,
    )
    arming(ctx, attempt, timer)
    if guards.scheduled is not None:
        guards.scheduled.arm(timer)
    if guards.fuse is not None:
        guards.fuse.arm(timer, last_words())
    if not timers.put_in_force(timer):
        return None
    guards.require(timer)
    return timer


def left_usd(ctx: Context, attempt: Attempt) -> Decimal:
    """What this box may cost from now on: the tightest of the run's own cap and those of all."""
    ledger = ctx.journal.ledger
    ledger.book(attempt.label, ctx.journal.runs.get(ctx.run.id).phase)
    caps = caps_of(ctx.settings, ctx.budget, ctx.cloud.name, ctx.clock.now())
    of_run = caps.run_usd - ledger.committed_usd(ctx.run.id, but_label=attempt.label)
    rooms = ledger.rooms(caps.periods, but_label=attempt.label)
    return min([of_run, *(room.left_usd for room in rooms)])


def arming(ctx: Context, attempt: Attempt, timer: Timer) -> None:
    """A1: the timer is on disk, and paid for, before any guard hears of it."""
    now = ctx.clock.now()
    ends = money.Deadlines(timer.fires_at, timer.ends_at, attempt.ceiling_at)
    reserve = money.ceiling_usd(attempt.usd_per_hour, now, ends, ctx.cloud.traits)
    caps = caps_of(ctx.settings, ctx.budget, ctx.cloud.name, now)
    ctx.journal.timers.arming(timer, ctx.run.id, ctx.epoch, reserve, caps)
    ctx.trace(attempt, timer, attempt.state.value)
