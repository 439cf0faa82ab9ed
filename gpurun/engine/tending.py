"""What a driver looks after beside its work, whatever that is: the keeper, and the fuse of its box.

Each in a thread of its own: a transfer of hours, a command that hangs and a line that is down keep
neither from being looked at.
"""

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import TracebackType

from gpurun import keeper
from gpurun.clock import Clock
from gpurun.engine.context import Context
from gpurun.engine.guarding import last_words
from gpurun.errors import GpurunError
from gpurun.fuse import FuseState
from gpurun.guards import Fuse, fuse_of
from gpurun.model import Attempt, AttemptState, Timer
from gpurun.places import Places
from gpurun.reach import shell_of

KEEPER_LOOK_EVERY_S = 0.5
PARENT_NEEDS_S = 0.4
STOPPED_FOR_S = 10.0
STARTS_WITHIN_S = 10.0  # a start is not known to be in vain before
FUSE_LOOK_EVERY_S = 10.0  # at what the journal knows of it
FUSE_READ_EVERY = timedelta(seconds=30)  # it is known for 180 s


class Beside:
    """Calls `look` again and again, `every_s` apart, until the block is left.

    It must not go on while signals are held back: they would reach its thread.
    """

    def __init__(self, look: Callable[[], None], every_s: float) -> None:
        self._look = look
        self._every_s = every_s
        self._left = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Beside":
        self._begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """A run that is to end does not wait for a box that hangs: its fuse goes by seq."""
        self._left.set()
        if error is None:
            self._end()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing of it is under way in the block."""
        self._end()
        try:
            yield
        finally:
            self._begin()

    def _begin(self) -> None:
        self._left = left = threading.Event()
        self._thread = threading.Thread(target=self._go, args=(left,), daemon=True, name="beside")
        self._thread.start()

    def _end(self) -> None:
        self._left.set()
        if self._thread is not None:
            self._thread.join()

    def _go(self, left: threading.Event) -> None:
        while not left.wait(self._every_s):
            try:
                self._look()
            except Exception:  # a bug of ours must not leave a box with one guard less
                traceback.print_exc()


class KeeperTending:
    """Starts the keeper again when both it and the parent that does the same are gone."""

    def __init__(self, places: Places, clock: Clock, say: Callable[[str], None]) -> None:
        self._places = places
        self._clock = clock
        self._say = say
        self._due_s: float | None = None  # when it is to be started, while it is gone

    def __call__(self) -> None:
        with suppress(OSError):  # what cannot be asked now is asked again
            self._look()

    def _look(self) -> None:
        if keeper.running(self._places) is not None:
            self._due_s = None
            return
        now_s = self._clock.boot_s()
        if self._due_s is None:
            self._due_s = now_s + (PARENT_NEEDS_S if self._was_killed() else STOPPED_FOR_S)
        if now_s < self._due_s:
            return
        self._due_s = now_s + STARTS_WITHIN_S
        self._say("the keeper is gone: it is started again")
        try:
            keeper.summon(self._places)
        except OSError as error:
            self._say(f"the keeper could not be started: {error}")

    def _was_killed(self) -> bool:
        """One that was told to stop has taken its pid from the lock, and may have a successor."""
        lock = self._places.keeper_lock
        return lock.exists() and bool(lock.read_text().strip())


class FuseTending:
    """Reads the fuse now and then; one that died, or holds an older timer, is armed again.

    What was read lies in the journal, also by others, so that a look mostly needs no box.  From
    first contact on, over a connection of its own.
    """

    def __init__(self, ctx: Context, attempt: Attempt, say: Callable[[str], None]) -> None:
        self._ctx = ctx
        self._attempt = attempt
        self._say = say
        self._fuse: Fuse | None = None
        self._trouble = ""

    def __call__(self) -> None:
        try:
            timer = self._timer()
            if timer is not None and not self._known(timer):
                self._tend(timer)
        except (GpurunError, OSError) as error:  # the next look tries again
            self._note(f"the fuse could not be looked after: {error}")

    def _timer(self) -> Timer | None:
        """None when there is nothing to guard any more."""
        label, journal = self._attempt.label, self._ctx.journal
        attempt = journal.attempts.get(label)
        if attempt.state is not AttemptState.SEEN or attempt.ending is not None:
            return None
        return journal.timers.of(label)

    def _known(self, timer: Timer) -> bool:
        words = self._ctx.journal.timers.guards_of(timer.label)
        word = next((each for each in words if each.name == "fuse"), None)
        if word is None or word.state == "none":  # before first contact
            return True
        if word.state != "armed" or word.seq_read < timer.seq or word.read_back_at is None:
            return False
        return self._ctx.clock.now() - word.read_back_at < FUSE_READ_EVERY

    def _tend(self, timer: Timer) -> None:
        fuse = self._fuse = self._fuse or self._reached()
        if fuse is None:
            return
        state, again = fuse.read(), False
        if not _holds(state, timer) and self._timer() == timer:
            state, again = fuse.arm(timer, last_words()), True
        if state is None:
            self._fuse = None  # over a new connection, perhaps to another address
        if not _holds(state, timer):
            self._note("the fuse cannot be armed again: until it is, it is no guard")
        elif again or self._trouble:
            self._note("")
            self._event("the fuse was armed again")

    def _reached(self) -> Fuse | None:
        ctx, attempt = self._ctx, self._attempt
        assert attempt.instance_id is not None
        shell = shell_of(ctx.cloud, attempt.instance_id, ctx.places)
        return fuse_of(ctx.cloud, attempt, ctx.journal, ctx.clock, shell)

    def _note(self, trouble: str) -> None:
        """Each trouble once."""
        if trouble and trouble != self._trouble:
            self._event(trouble)
        self._trouble = trouble

    def _event(self, what: str) -> None:
        ctx = self._ctx
        self._say(what)
        ctx.fact(lambda: ctx.journal.runs.event(ctx.run.id, "guard", what, self._attempt.label))


def keeper_tended(places: Places, clock: Clock, say: Callable[[str], None]) -> Beside:
    return Beside(KeeperTending(places, clock, say), KEEPER_LOOK_EVERY_S)


def fuse_tended(ctx: Context, attempt: Attempt, say: Callable[[str], None]) -> Beside:
    return Beside(FuseTending(ctx, attempt, say), FUSE_LOOK_EVERY_S)


def _holds(state: FuseState | None, timer: Timer) -> bool:
    """A later timer than ours is one that is being put in force, or was paid for."""
    return state is not None and state.seq >= timer.seq and state.holds(state.seq)
