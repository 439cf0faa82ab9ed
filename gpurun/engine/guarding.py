"""The guards beside the keeper, as a driver works with them; at first contact there are enough."""

from collections.abc import Callable
from dataclasses import dataclass

from gpurun import push
from gpurun.engine.context import Context
from gpurun.engine.detached import terminate_text
from gpurun.errors import PhaseFailed
from gpurun.guards import AtProvider, Fuse, at_provider, fuse_of
from gpurun.model import Attempt, Timer
from gpurun.shell import Shell


def last_words() -> str:
    """What the fuse does inside the box before it ends it."""
    return f"{terminate_text('train')}\n{push.last_text()}"


@dataclass(frozen=True, slots=True)
class Others:
    """The guards of one box beside the keeper; None where its provider has no such guard."""

    fuse: Fuse | None = None
    scheduled: AtProvider | None = None

    def require(self, timer: Timer) -> None:
        """A5: no launch while one of them may hold an older timer than this."""
        if self.scheduled is not None:
            self.scheduled.require(timer)
        if self.fuse is not None:
            self.fuse.require(timer)


def others(ctx: Context, attempt: Attempt, shell: Shell) -> Others:
    """Of the box that this shell reaches."""
    return Others(
        fuse_of(ctx.cloud, attempt, ctx.journal, ctx.clock, shell),
        at_provider(ctx.cloud, attempt, ctx.journal),
    )


def arm_at_provider(ctx: Context, attempt: Attempt, say: Callable[[str], None]) -> None:
    """R8: the one guard that needs no box; what it will not hold is one guard less."""
    timer, guard = (
        ctx.journal.timers.of(attempt.label),
        at_provider(ctx.cloud, attempt, ctx.journal),
    )
    if timer is not None and guard is not None and (trouble := guard.arm(timer)):
        say(f"{ctx.cloud.name} does not hold a timer of its own for this box: {trouble}")
        ctx.journal.runs.event(ctx.run.id, "guard", f"provider: {trouble}", attempt.label)


def first_contact(ctx: Context, attempt: Attempt, shell: Shell, say: Callable[[str], None]) -> None:
    """R10: the fuse armed, read back and rehearsed.

    PhaseFailed: another box may do better.  Once it was accepted a box is kept as it is.
    """
    timer = ctx.journal.timers.of(attempt.label)
    if timer is None:
        return
    if fuse := others(ctx, attempt, shell).fuse:
        fuse.arm(timer, last_words())
        if ctx.cloud.traits.fuse_ends_bill and not fuse.rehearse():
            why = f"the fuse on the box is not heard by {ctx.cloud.name}: it cannot end the bill"
            if not (ctx.accept_one_guard or ctx.journal.runs.began(ctx.run.id, "ship")):
                raise PhaseFailed(why)
            say(why)
    _require_enough(ctx, attempt)


def _require_enough(ctx: Context, attempt: Attempt) -> None:
    words = [word for word in ctx.journal.timers.guards_of(attempt.label) if word.name != "keeper"]
    able = 1 + sum(word.state == "armed" and word.ends_bill for word in words)
    if able >= ctx.settings.min_guards or ctx.accept_one_guard:
        return
    known = ", ".join(f"{word.name}: {word.state}" for word in words) or "no other"
    raise PhaseFailed(
        f"{able} guard could end the bill of this box (keeper; {known}), min_guards is "
        f"{ctx.settings.min_guards}; if you accept that: `gpurun up ... --accept-one-guard`"
    )
