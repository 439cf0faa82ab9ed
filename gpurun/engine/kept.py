"""A failed box that is kept for a look, `budget.keep_on_failure_minutes`, inside its timer."""

from collections.abc import Callable
from contextlib import suppress

from gpurun.engine import guarding
from gpurun.engine.box import Box
from gpurun.engine.context import Context
from gpurun.engine.guarding import last_words
from gpurun.engine.training import Looks
from gpurun.errors import GpurunError
from gpurun.model import Attempt, AttemptState, Run
from gpurun.store import StoreError

PHASE = "keep"  # what its time is booked as
TICK_S = 1.0


def is_kept(run: Run) -> bool:
    """It has failed, and nothing has ended it yet."""
    return run.ending is None and run.exit_code is not None


def begin(
    ctx: Context,
    attempt: Attempt,
    box: Box,
    error: str,
    exit_code: int,
    say: Callable[[str], None],
) -> bool:
    """Its timer comes nearer: on the keeper at once, then on the others.  False: nothing is kept.

    A box that stays has ended by its idleness, or by its timer: there is nothing to look at.
    """
    keep_s = float(ctx.recipe.budget.keep_on_failure_minutes) * 60
    attempt = ctx.journal.attempts.get(attempt.label)
    if not keep_s or ctx.stays or attempt.state is not AttemptState.SEEN:
        return False
    timer = ctx.journal.keeping.keep(
        ctx.run.id,
        attempt.label,
        ctx.epoch,
        keep_s=keep_s,
        grace_s=ctx.budget.grace_s,
        traits=ctx.cloud.traits,
        error=error,
        exit_code=exit_code,
    )
    if timer is None:
        say("no time is left in which the failed box could be kept for a look")
        return False
    ctx.fact(lambda: ctx.trace(attempt, timer, attempt.state.value))
    say(f"{error}\nkept for a look until {timer.fires_at:%H:%M:%S} UTC")
    others = guarding.others(ctx, attempt, box.shell)
    with suppress(GpurunError, OSError):  # the keeper holds it; the others are tended
        if others.fuse is not None:
            others.fuse.arm(timer, last_words())
        if others.scheduled is not None:
            others.scheduled.arm(timer)
    return True


def hold(ctx: Context, attempt: Attempt, looks: Looks) -> None:
    """Until the run is ending: by its timer, or by `gpurun kill`.  Never returns by itself."""
    try:
        while True:
            with suppress(StoreError):
                looks()
            ctx.clock.sleep(TICK_S)
    finally:
        ctx.fact(lambda: ctx.journal.ledger.book(attempt.label, PHASE))
