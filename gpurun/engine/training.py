"""While a box works: its training watched, its guards tended, its checkpoints fetched."""

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from gpurun import keeper
from gpurun.clock import Clock, after
from gpurun.engine import pushing
from gpurun.engine.box import Box
from gpurun.engine.context import Context
from gpurun.engine.gather import Gatherer
from gpurun.engine.guarding import last_words
from gpurun.engine.idle import Idle
from gpurun.engine.watch import watch
from gpurun.errors import PhaseFailed
from gpurun.guards import Fuse
from gpurun.model import Attempt
from gpurun.provider import OverSsh
from gpurun.shell import Shell
from gpurun.signals import Told
from gpurun.store import StoreError

KEEPER_EVERY_S = 10.0
FUSE_READ_EVERY_S = 60.0
FUSE_AGAIN_EVERY_S = 10.0  # while it does not hold what it should
BOOK_EVERY_S = 60.0
HOLD_TICK_S = 1.0
SURE_LOOKS = 3  # what has died is known after two


class Every:
    """Whether it is time again for what is done now and then; the first time it is not."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_s: dict[str, float] = {}

    def __call__(self, seconds: float, what: str) -> bool:
        now_s = self._clock.boot_s()
        if now_s - self._last_s.setdefault(what, now_s) < seconds:
            return False
        self._last_s[what] = now_s
        return True


class Tending:
    """What is done now and then while a box works, whatever it works on."""

    def __init__(
        self, ctx: Context, attempt: Attempt, fuse: Fuse | None, phase: str = "train"
    ) -> None:
        self._ctx = ctx
        self._phase = phase  # what its time is booked as
        self._attempt = attempt
        self._fuse = fuse
        self._every = Every(ctx.clock)
        self._fuse_every_s = FUSE_READ_EVERY_S

    def __call__(self) -> None:
        """Raises Told when the run is ending."""
        ctx = self._ctx
        if ctx.journal.runs.get(ctx.run.id).ending is not None:
            raise Told
        if self._every(KEEPER_EVERY_S, "keeper"):
            keeper.summon(ctx.places)
        if self._fuse is not None and self._every(self._fuse_every_s, "fuse"):
            self._tend(self._fuse)
        if self._every(BOOK_EVERY_S, "book"):
            ctx.journal.ledger.book(self._attempt.label, self._phase)

    def _tend(self, fuse: Fuse) -> None:
        """A fuse that died, or holds an older timer, is given the one in force again."""
        timer = self._ctx.journal.timers.of(self._attempt.label)
        state = fuse.read()
        holds = timer is None or (state is not None and state.holds(timer.seq))
        self._fuse_every_s = FUSE_READ_EVERY_S if holds else FUSE_AGAIN_EVERY_S
        if timer is not None and not holds:
            fuse.arm(timer, last_words())


class Left(Exception):
    """The training goes on by itself, and the keeper watches it."""


def train(
    ctx: Context,
    box: Box,
    tending: Tending,
    log: Path,
    say: Callable[[str], None],
) -> str:
    """Launch, and watch to the end; returns the reason.  PhaseFailed says why it failed.

    Left: it is well under way, and nobody is needed but the keeper.
    """
    began_s = ctx.clock.boot_s()
    pushing.begin(ctx, box)
    box.perform("train")
    after_s, looks = _leave_after_s(ctx), 0
    with Gatherer(ctx, box.attempt, say) as gatherer:

        def each_look() -> None:
            nonlocal looks
            looks += 1
            tending()
            gatherer.look()
            due = (
                looks >= SURE_LOOKS
                and ctx.clock.boot_s() - began_s >= after_s
                and not gatherer.working()
            )
            if due and keeper.running(ctx.places):
                raise Left

        return watch(ctx, box.line, log, each_look)


def _leave_after_s(ctx: Context) -> float:
    """A driver costs nothing beside a box on this machine; on one that stays it has work."""
    if ctx.stays or not isinstance(ctx.cloud, OverSsh):
        return math.inf
    return float(ctx.settings.leave_after_minutes) * 60


def hold(ctx: Context, shell: Shell, tending: Tending) -> None:
    """An interactive box: its timer, a kill or idle GPUs end it.  Never returns by itself."""
    idle = Idle(ctx.recipe, shell, ctx.clock)
    while True:
        with suppress(StoreError):
            tending()
        if why := idle.look():
            ctx.fact(partial(_note_idle, ctx, idle))
            raise PhaseFailed(why)
        ctx.clock.sleep(HOLD_TICK_S)


def _note_idle(ctx: Context, idle: Idle) -> None:
    """From when on the box was paid for nothing."""
    since = after(ctx.clock.now(), -idle.seconds).isoformat()
    progress = ctx.journal.runs.progress_of(ctx.run.id)
    ctx.journal.runs.progress(ctx.run.id, progress | {"idle_since": since})
