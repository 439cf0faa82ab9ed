"""While a box works: its training watched, its time booked, its checkpoints fetched."""

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from gpurun import keeper
from gpurun.clock import after
from gpurun.engine import pushing
from gpurun.engine.box import Box
from gpurun.engine.context import Context
from gpurun.engine.gather import Gatherer
from gpurun.engine.idle import Idle
from gpurun.engine.watch import watch
from gpurun.errors import PhaseFailed
from gpurun.model import Attempt
from gpurun.provider import OverSsh
from gpurun.shell import Shell
from gpurun.signals import Told
from gpurun.store import StoreError

BOOK_EVERY_S = 60.0
HOLD_TICK_S = 1.0
SURE_LOOKS = 3  # what has died is known after two


class Looks:
    """What is done at each look at a box that works, whatever it works on."""

    def __init__(self, ctx: Context, attempt: Attempt, phase: str = "train") -> None:
        self._ctx = ctx
        self._attempt = attempt
        self._phase = phase  # what its time is booked as
        self._booked_s = ctx.clock.boot_s()

    def __call__(self) -> None:
        """Raises Told when the run is ending."""
        ctx, now_s = self._ctx, self._ctx.clock.boot_s()
        if ctx.journal.runs.get(ctx.run.id).ending is not None:
            raise Told
        if now_s - self._booked_s >= BOOK_EVERY_S:
            self._booked_s = now_s
            ctx.journal.ledger.book(self._attempt.label, self._phase)


class Left(Exception):
    """The training goes on by itself, and the keeper watches it."""


def train(
    ctx: Context,
    box: Box,
    looks: Looks,
    log: Path,
    say: Callable[[str], None],
) -> str:
    """Launch, and watch to the end; returns the reason.  PhaseFailed says why it failed.

    Left: it is well under way, and nobody is needed but the keeper.
    """
    began_s = ctx.clock.boot_s()
    pushing.begin(ctx, box)
    box.perform("train")
    after_s, looked = _leave_after_s(ctx), 0
    with Gatherer(ctx, box.attempt, say) as gatherer:

        def each_look() -> None:
            nonlocal looked
            looked += 1
            looks()
            gatherer.look()
            due = (
                looked >= SURE_LOOKS
                and ctx.clock.boot_s() - began_s >= after_s
                and not gatherer.working()
            )
            if due and keeper.running(ctx.places):
                raise Left("the training goes on; the keeper watches it")

        return watch(ctx, box.line, log, each_look)


def _leave_after_s(ctx: Context) -> float:
    """A driver costs nothing beside a box on this machine; on one that stays it has work."""
    if ctx.stays or not isinstance(ctx.cloud, OverSsh):
        return math.inf
    return float(ctx.settings.leave_after_minutes) * 60


def hold(ctx: Context, shell: Shell, looks: Looks) -> None:
    """An interactive box: its timer, a kill or idle GPUs end it.  Never returns by itself."""
    idle = Idle(ctx.recipe, shell, ctx.clock)
    while True:
        with suppress(StoreError):
            looks()
        if why := idle.look():
            ctx.fact(partial(_note_idle, ctx, idle))
            raise PhaseFailed(why)
        ctx.clock.sleep(HOLD_TICK_S)


def _note_idle(ctx: Context, idle: Idle) -> None:
    """From when on the box was paid for nothing."""
    since = after(ctx.clock.now(), -idle.seconds).isoformat()
    progress = ctx.journal.runs.progress_of(ctx.run.id)
    ctx.journal.runs.progress(ctx.run.id, progress | {"idle_since": since})
