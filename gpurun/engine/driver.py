"""The driver: the one process that takes a run from its offer to its proven end.

It reads where the run stands from the journal and goes on from there, so that a first drive, a
`resume` and a takeover by the keeper are the same code.
"""

import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path

from gpurun import snapshot
from gpurun.avoid import Avoided
from gpurun.clock import Clock
from gpurun.engine import arm, guarding, kept, tending, training
from gpurun.engine.boot import boot
from gpurun.engine.box import Box
from gpurun.engine.context import Context, open_context
from gpurun.engine.ending import collect, destroy, end_all
from gpurun.engine.rent import offers_left, rent
from gpurun.engine.seen import look_at, resolve
from gpurun.engine.training import Looks
from gpurun.errors import GpurunError, NoCapacity, PhaseFailed, ProviderError, UsageError
from gpurun.holdings import UNRESOLVED
from gpurun.locks import Taken, hold
from gpurun.model import Attempt, AttemptState, Ending
from gpurun.places import Places
from gpurun.settings import Settings
from gpurun.signals import Told, listen, stop_listening
from gpurun.store import Damaged, Fenced, Journal

BUG = 1


def drive(run_id: str, places: Places, settings: Settings, clock: Clock, may_rent: bool) -> None:
    """Drive a run to its end; does nothing when another process drives it."""
    try:
        with hold(places.run_lock(run_id)):
            listen()
            epoch = Journal(places.database, clock).runs.take(run_id)
            Driver(open_context(run_id, places, settings, clock, epoch), may_rent).go()
    except Taken:
        return


class Driver:
    """One drive of one run."""

    def __init__(self, ctx: Context, may_rent: bool) -> None:
        self._ctx = ctx
        self._may_rent = may_rent
        self._dir: Path = ctx.places.run_dir(ctx.run.id)
        self._dir.mkdir(parents=True, exist_ok=True)
        self._steps_log = (self._dir / "steps.log").open(
            "a", buffering=1, encoding="utf-8", errors="replace"
        )
        self._train_log = self._dir / "train.log"
        self._keeper = tending.keeper_tended(ctx.places, ctx.clock, self._say)

    def go(self) -> None:
        with self._keeper:
            self._go()

    def _go(self) -> None:
        try:
            if self._ctx.run.ending is None:
                self._drive_or_keep()
        except (training.Left, Damaged) as error:  # the keeper watches, and puts right what it can
            self._say(str(error))
            return
        except (Told, Fenced):
            if self._fresh().run.ending is None:
                return  # another driver has it: touch nothing
            self._say("the run is ending")
        except GpurunError as error:
            self._fail(str(error), self._code(error))
        except Exception as error:  # a bug of ours must not leave a box behind
            traceback.print_exc()
            self._fail(f"a bug in gpurun: {error!r}; see {self._dir / 'driver.log'}", BUG)
        stop_listening()
        end_all(self._fresh(), self._say)
        snapshot.forget(self._ctx.places.cargo(self._ctx.run.id))

    def _drive_or_keep(self) -> None:
        """A failed box may be kept for a look; it is held open until its timer, or a kill."""
        ctx = self._ctx
        if not kept.is_kept(ctx.run):
            try:
                self._drive()
                return
            except (Fenced, Damaged):
                raise
            except GpurunError as error:
                if not self._keep(error):
                    raise
        attempt = ctx.attempt()
        assert attempt is not None
        with tending.fuse_tended(ctx, attempt, self._say):
            if not kept.is_kept(ctx.run) and self._launched():
                with suppress(GpurunError):  # it is fetched again before the box goes
                    collect(ctx, Box(ctx, attempt, self._say), self._say)
            kept.hold(ctx, attempt, Looks(ctx, attempt, kept.PHASE))

    def _keep(self, error: GpurunError) -> bool:
        ctx, attempt = self._ctx, self._ctx.attempt()
        if attempt is None or not ctx.journal.runs.began(ctx.run.id, "ship"):
            return False
        box = Box(ctx, attempt, self._say)
        return kept.begin(ctx, attempt, box, str(error), self._code(error), self._say)

    def _drive(self) -> None:
        while True:
            attempt = self._attempt()
            self._fuse = tending.fuse_tended(self._ctx, attempt, self._say)
            try:
                with self._fuse:
                    self._work(attempt)
            except PhaseFailed as error:
                if not self._next_offer(attempt, error):
                    raise
            else:
                return

    def _attempt(self) -> Attempt:
        """The box to work on: the one that the journal knows, else a new one."""
        ctx = self._ctx
        last = ctx.attempt()
        if last is not None and last.state is AttemptState.INTENT:
            ctx.journal.attempts.refused(last.label, "its driver died before the request left")
            raise ProviderError("the driver died before anything was rented; run `up` again")
        if last is not None and last.state in UNRESOLVED:
            return self._resolved(last)
        if last is not None and last.state.may_bill and last.ending is None:
            return last
        if not self._may_rent:
            raise ProviderError("nothing is rented, and a takeover never rents; run `up` again")
        self._show("rent")
        with self._keeper.paused():
            made = rent(ctx, self._say)
        return self._resolved(made) if made.state is AttemptState.UNCLEAR else made

    def _resolved(self, attempt: Attempt) -> Attempt:
        found = None if attempt.state is AttemptState.GHOST else resolve(self._ctx, attempt)
        if found is None:
            raise NoCapacity(
                f"{attempt.label} never appeared at {attempt.provider}; the keeper ends it if it "
                "still does. Nothing else was rented."
            )
        return found

    def _next_offer(self, attempt: Attempt, error: PhaseFailed) -> bool:
        """A misfit box is ended, and the next offer tried; once it was accepted there is none.

        Its machine is avoided from then on, by every run.
        """
        ctx = self._ctx
        if self._phase() not in ("rent", "boot", "accept") or not self._may_rent:
            return False
        self._avoid(attempt, error)
        try:
            if not offers_left(ctx):
                return False
        except GpurunError:  # a host of ours is held by this very run: the misfit is the news
            return False
        self._say(f"{error}; trying the next offer")
        ctx.journal.endings.end_attempt(attempt.label, Ending.FAILED, str(error))
        destroy(ctx, attempt, self._say)
        return True

    def _avoid(self, attempt: Attempt, error: PhaseFailed) -> None:
        assert attempt.instance_id is not None
        with suppress(ProviderError):  # it cannot say which machine it was
            if row := self._ctx.cloud.instance(attempt.instance_id):
                avoided = Avoided(self._ctx.places.root, self._ctx.clock)
                avoided.remember(self._ctx.cloud.name, row.machine, str(error))

    def _work(self, attempt: Attempt) -> None:
        ctx = self._ctx
        if attempt.state is AttemptState.MADE:
            guarding.arm_at_provider(ctx, attempt, self._say)
        if not ctx.journal.runs.began(ctx.run.id, "ship"):  # it was not accepted before
            look_at(ctx, attempt)
            ctx.journal.ledger.book(attempt.label, "rent")
        attempt = ctx.journal.attempts.get(attempt.label)
        box = Box(ctx, attempt, self._say)
        if not ctx.stays:
            self._phases(attempt, box)
            why = ctx.journal.runs.said_by(attempt.label, "train") or "finished"
            ctx.journal.endings.end_run(ctx.run.id, Ending.DONE, why, grace_s=0)
            return
        if ctx.task == 0:
            self._phases(attempt, box)
        elif not ctx.task_result():
            self._task(attempt, box)
        training.hold(ctx, box.line, Looks(ctx, attempt))

    def _phases(self, attempt: Attempt, box: Box) -> None:
        ctx = self._ctx
        done = ctx.journal.runs.phases_done(attempt.label, ctx.work_digest)
        for phase in ("boot", "accept", "ship", "setup", "data", "verify", "arm", "train"):
            if ctx.task and phase == "arm":  # the box keeps the timer that it has
                continue
            if phase not in done or phase == "boot":
                self._perform(phase, attempt, box)
        if ctx.recipe.train is not None:
            self._perform("collect", attempt, box)

    def _task(self, attempt: Attempt, box: Box) -> None:
        """A recipe that `up --on` has brought: whatever becomes of it, the box stays."""
        ctx = self._ctx
        box.begin_task()
        code, reason = 0, f"{ctx.recipe.name} finished"
        try:
            self._phases(attempt, box)
        except (PhaseFailed, UsageError) as error:
            code, reason = PhaseFailed.exit_code, str(error)
            self._say(reason)
            with suppress(PhaseFailed):
                collect(ctx, box, self._say)
        progress = ctx.journal.runs.progress_of(ctx.run.id)
        result = {"exit_code": code, "reason": reason}
        ctx.journal.runs.progress(ctx.run.id, progress | {"task_result": result})
        self._show("train")

    def _perform(self, phase: str, attempt: Attempt, box: Box) -> None:
        ctx = self._ctx
        row = ctx.journal.runs.begin_phase(
            ctx.run.id, attempt.label, phase, ctx.work_digest, ctx.epoch
        )
        self._say(f"phase {phase}")
        result, detail = "failed", ""
        try:
            detail = self._phase_work(phase, attempt, box)
            result = "ok"
        except training.Left:
            result = "goes on"
            raise
        finally:
            ctx.fact(lambda: ctx.journal.ledger.book(attempt.label, phase))
            ctx.fact(lambda: ctx.journal.runs.end_phase(row, result, detail))

    def _phase_work(self, phase: str, attempt: Attempt, box: Box) -> str:
        ctx = self._ctx
        match phase:
            case "boot":
                boot(ctx, attempt, lambda: box.line)
                with self._fuse.paused():
                    guarding.first_contact(ctx, attempt, box.shell, self._say)
            case "accept":
                box.accept()
            case "arm":
                with self._fuse.paused():  # it may be about to hand out an older timer
                    arm.arm_run(ctx, attempt, guarding.others(ctx, attempt, box.shell))
            case "train":
                return self._train(attempt, box)
            case "collect":
                collect(ctx, box, self._say)
            case _:
                box.perform(phase)
        return ""

    def _train(self, attempt: Attempt, box: Box) -> str:
        if self._ctx.recipe.train is None:
            return "the box is ready"
        looks = Looks(self._ctx, attempt)
        return training.train(self._ctx, box, looks, self._train_log, self._say)

    def _fail(self, error: str, exit_code: int) -> None:
        ctx = self._fresh()
        self._say(error)
        grace_s = ctx.budget.grace_s if self._launched() else 0.0
        for timer in ctx.journal.endings.end_run(ctx.run.id, Ending.FAILED, error, grace_s):
            attempt = ctx.journal.attempts.get(timer.label)
            ctx.fact(partial(ctx.trace, attempt, timer, "deleting"))
        ctx.fact(lambda: ctx.journal.runs.failing(ctx.run.id, error, exit_code))

    def _code(self, error: GpurunError) -> int:
        """Codes 2 and 3 say that nothing was rented: never of a run that had a box."""
        attempts = self._ctx.journal.attempts.of_run(self._ctx.run.id)
        rented = any(a.state.may_bill or a.state is AttemptState.GONE for a in attempts)
        return PhaseFailed.exit_code if rented and error.exit_code in (2, 3) else error.exit_code

    def _launched(self) -> bool:
        """Whether there may be something worth collecting."""
        return self._ctx.journal.runs.began(self._ctx.run.id, "train")

    def _phase(self) -> str:
        return self._ctx.journal.runs.get(self._ctx.run.id).phase

    def _fresh(self) -> Context:
        ctx = self._ctx
        given = (ctx.places, ctx.settings, ctx.clock, ctx.epoch)
        return open_context(ctx.run.id, *given, ctx.clouds)  # a key may have gone meanwhile

    def _show(self, phase: str) -> None:
        self._ctx.journal.runs.show_phase(self._ctx.run.id, phase)

    def _say(self, text: str) -> None:
        with suppress(OSError):  # a full disk must not end a training
            self._steps_log.write(text.rstrip() + "\n")
