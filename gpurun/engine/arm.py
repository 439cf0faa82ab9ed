"""ARM and EXTEND (protocol 3): the timer that ends the training, on every guard, then launch."""

from dataclasses import dataclass

from gpurun import budget as money
from gpurun import fuse
from gpurun.clock import after
from gpurun.engine.context import Context
from gpurun.errors import PhaseFailed, UsageError
from gpurun.model import Attempt, Timer
from gpurun.provider import OwnFuse
from gpurun.shell import Shell
from gpurun.signals import Told
from gpurun.store.ledger import Caps
from gpurun.timers import timer_for


@dataclass(frozen=True, slots=True)
class FuseSite:
    """Where the fuse of a box runs, and what it does at its deadline."""

    shell: Shell
    home: str
    self_destroy: str
    terminate: str


def arm_fuse(ctx: Context, attempt: Attempt, site: FuseSite, timer: Timer) -> None:
    """Put a timer on the fuse and read it back; what was read is what the journal says."""
    fuse.arm(
        site.shell,
        site.home,
        timer,
        ctx.clock,
        self_destroy=site.self_destroy,
        terminate=site.terminate,
    )
    read_fuse(ctx, attempt, site)


def read_fuse(ctx: Context, attempt: Attempt, site: FuseSite) -> None:
    state = fuse.read_back(site.shell, site.home)
    if state is None or not state.alive:
        ctx.journal.timers.guard(attempt.label, "fuse", "unknown")
    else:
        ctx.journal.timers.guard(
            attempt.label, "fuse", "armed", seq=state.seq, ends_at=state.ends_at
        )


def arm_run(ctx: Context, attempt: Attempt, site: FuseSite | None) -> Timer:
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
    if site is not None:
        arm_fuse(ctx, attempt, site, timer)
    if not timers.put_in_force(timer):
        raise Told  # the setup timer fired meanwhile: the run is ending
    if site is not None:
        state = fuse.read_back(site.shell, site.home)
        if state is not None and state.alive and state.seq < timer.seq:
            raise PhaseFailed(
                f"the fuse still holds timer {state.seq}, which would end the training at the "
                f"setup hour ({state.ends_at:%H:%M} UTC). Training was not launched."
            )
    return timer


def extend(ctx: Context, attempt: Attempt, site: FuseSite | None, seconds: float) -> Timer:
    """EXTEND: provider, fuse, keeper, in this order; refused when it cannot be paid for."""
    timers = ctx.journal.timers
    old = timers.of(attempt.label)
    if old is None or ctx.run.ending is not None:
        raise UsageError(f"run {ctx.run.id} is ending; it cannot be extended")
    fires_at, ends_at = after(old.fires_at, seconds), after(old.ends_at, seconds)
    seq = timers.last_seq(attempt.label) + 1
    timer = timer_for(attempt.label, seq, old.kind, fires_at, ends_at, ctx.clock)
    _arming(ctx, attempt, timer)
    ctx.trace(attempt, timer, attempt.state.value)
    if site is not None:
        arm_fuse(ctx, attempt, site, timer)
    if not timers.put_in_force(timer):
        raise UsageError(f"run {ctx.run.id}: its timer has just fired; it cannot be extended")
    return timer


def _arming(ctx: Context, attempt: Attempt, timer: Timer) -> None:
    """A1: the timer is on disk, and paid for, before any guard hears of it."""
    ends = money.Deadlines(timer.fires_at, timer.ends_at, attempt.ceiling_at)
    reserve = money.ceiling_usd(attempt.usd_per_hour, ctx.clock.now(), ends, ctx.cloud.traits)
    ctx.journal.timers.arming(timer, ctx.run.id, ctx.epoch, reserve, Caps(ctx.budget.max_usd))


def fuse_site(ctx: Context, attempt: Attempt, box_shell: Shell, terminate: str) -> FuseSite | None:
    """Beside the box where the provider says so, else on it."""
    assert attempt.instance_id is not None
    if isinstance(ctx.cloud, OwnFuse):
        return FuseSite(
            shell=ctx.cloud.fuse_shell(attempt.instance_id),
            home=ctx.cloud.fuse_home(attempt.instance_id),
            self_destroy=ctx.cloud.self_destroy(attempt.instance_id),
            terminate=ctx.cloud.inside(attempt.instance_id, terminate),
        )
    return None
