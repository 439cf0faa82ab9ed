"""A training run: its steps, and what comes between them: reports, checkpoints, evaluations."""

import contextlib
import logging
import math
import time
from pathlib import Path

import torch

from remote import checkpoint, evaluators
from remote.config import PretrainConfig
from remote.dataset.batches import Batch
from remote.dataset.loader import Loader
from remote.dataset.split import DatasetError
from remote.evaluation import Stopped, evaluate
from remote.evidence import Watchdog
from remote.memory import out_of_memory, try_step
from remote.plan import Plan, describe, iteration_of
from remote.ranks import Ranks
from remote.recorded import recorder_for
from remote.report import Report
from remote.signals import Sigterm
from remote.training import Training

log = logging.getLogger(__name__)
SAVE, STOP = 1, 2  # what one rank asks of all after a step; the greater one wins
TRIES = 3  # to save in a row: a disk that stays full ends a run that costs money
AGAIN_S = 60.0  # after a save that failed


class NotFinite(Exception):
    """A loss or gradient that no optimiser should see."""


class Run:
    """From the first step, or the last saved one, to the end of the epochs."""

    def __init__(self, config: PretrainConfig, plan: Plan, ranks: Ranks, sigterm: Sigterm) -> None:
        self._config, self._plan, self._ranks, self._sigterm = config, plan, ranks, sigterm
        self._evaluators = evaluators.make(config.evaluators, config.test_paths)
        self._training = Training(
            config,
            plan.train,
            ranks,
            schedule_steps=plan.schedule_steps,
            recorder=recorder_for(config, ranks),
        )
        if config.load_checkpoint:
            votes = checkpoint.load(self._training, config, ranks)
            for evaluator in self._evaluators:
                if ranks.first and evaluator.name in votes:
                    evaluator.restore(votes[evaluator.name])
        self._log_interval = config.log_interval or (10 if ranks.device.type == "cuda" else 1)
        self._saved_step = self._training.step if config.load_checkpoint else -1
        self._save_at_s = self._next_save_s()
        self._failed_saves = 0
        self._loader = Loader(
            lambda number: iteration_of(config, plan.train, number),
            ranks.shard,
            last=config.iterations,
        )
        self._watchdog = Watchdog(60 * config.hang_minutes)
        self._report = Report(
            config,
            plan.total_steps,
            speaks=ranks.first,
            from_step=self._training.step,
            parameters=plan.parameters,
        )

    def train(self) -> None:
        training, config = self._training, self._config
        if self._ranks.first:
            log.info("\n".join(describe(config, self._plan, self._ranks)))
        with (
            contextlib.closing(self._report),
            contextlib.closing(self._loader),
            self._watchdog.watching(),
        ):
            if self._ranks.any(flag=self._sigterm.asked):
                return self._sigterm.say_nothing_is_lost()
            while training.iteration <= config.iterations:
                self._train_iteration()
                if self._sigterm.asked:
                    return self._end_early()
                finished = self._is_last_iteration()
                # Before the evaluation, which may fail or be cut off: the steps are safe.
                if finished:
                    self._save()
                elif config.checkpoint_every_eval:
                    self._try_to_save()
                if training.iteration > config.min_eval_interval and not self._evaluate():
                    return self._end_early()
                if finished:
                    break
                training.iteration += 1
                training.batches_done = 0
            self._report.event("finished", training.step)

    def _train_iteration(self) -> None:
        training = self._training
        count, batches = self._loader.iteration(training.iteration, skip=training.batches_done)
        counts = self._ranks.gather(count)
        if len(set(counts)) > 1:
            raise DatasetError(f"the ranks see different data: {counts} batches")
        self._report.begin(training.step)
        asked = 0
        for batch in batches:
            if self._has_all_steps():
                break
            self._train_on(batch)
            if training.step % self._log_interval == 0:
                self._report_step()
            own = STOP if self._sigterm.asked else SAVE if self._save_is_due() else 0
            asked = self._ranks.most(own)
            if asked == STOP:
                self._sigterm.asked = True
                break
            if asked == SAVE:
                self._try_to_save()
        self._require_finite()
        if asked != STOP and self._is_last_iteration():
            self._report_step()

    def _is_last_iteration(self) -> bool:
        return self._training.iteration == self._config.iterations or self._has_all_steps()

    def _has_all_steps(self) -> bool:
        wanted = self._config.max_steps
        return wanted is not None and self._training.step >= wanted

    def _train_on(self, batch: Batch) -> None:
        self._sigterm.trained = True
        try:
            self._training.train_on(batch)
        except torch.OutOfMemoryError as error:
            raise out_of_memory(error, self._training, batch, self._ranks, try_step) from error
        self._watchdog.beat(f"step {self._training.step}")

    def _report_step(self) -> None:
        """Of the steps since the last report, if there were any."""
        self._require_finite()
        training = self._training
        if training.sums is not None:
            self._report.step(training.step, training.lr, training.take_metrics())

    def _require_finite(self) -> None:
        """Before anything is reported or saved, for a step that was not finite counts as made until
        then; waits for the device."""
        training = self._training
        if not (bad := training.bad_steps()):
            return
        training.forget_bad_steps(bad)
        path = self._save()
        self._report.event("not finite", training.step + 1)
        raise NotFinite(
            f"the loss or a gradient of step {training.step + 1} is not finite (NaN or infinite);"
            f" nothing of that step was kept, and {path} is the state before it. Go on from it"
            f" with load_checkpoint={path} and a lower lr, or arch.forward_dtype=float32"
        )

    def _evaluate(self) -> bool:
        """False if it was asked to stop."""
        if self._plan.test is None:
            return True
        began_s = time.monotonic()
        try:
            metrics = evaluate(
                self._training,
                self._config,
                self._plan.test,
                self._evaluators,
                self._ranks,
                self._stop_evaluating,
                self._report_evaluating,
            )
        except Stopped:
            return False
        metrics["eval_s"] = time.monotonic() - began_s
        self._report.event("eval", self._training.step, metrics)
        if self._ranks.first:
            path = Path(self._config.checkpoint_path) / f"step_{self._training.step}"
            checkpoint.rate(path, metrics, self._config)
        return True

    def _end_early(self) -> None:
        self._save()
        self._report.event("stopped", self._training.step)

    def _save_is_due(self) -> bool:
        """By steps for all ranks alike, by the clock for the one whose clock says so first."""
        every = self._config.checkpoint_every_n_steps
        if every and self._training.step % every == 0:
            return True
        return time.monotonic() >= self._save_at_s

    def _next_save_s(self) -> float:
        minutes = self._config.checkpoint_minutes
        return time.monotonic() + 60 * minutes if minutes else math.inf

    def _try_to_save(self) -> None:
        """What fails is tried again a minute later, and the state is not lost meanwhile; a disk
        that stays full ends the run, by NotSaved."""
        try:
            self._save()
        except checkpoint.NotSaved as error:
            self._failed_saves += 1
            if self._failed_saves == TRIES:
                raise
            self._save_at_s = time.monotonic() + AGAIN_S
            self._report.event("not saved", self._training.step, {"why": str(error)})
            if self._ranks.first:
                log.error("%s. Training goes on; next try in %.0f s", error, AGAIN_S)

    def _save(self) -> Path:
        self._require_finite()
        training = self._training
        path = Path(self._config.checkpoint_path) / f"step_{training.step}"
        if self._saved_step != training.step or not path.exists():
            votes = {e.name: e.state() for e in self._evaluators if e.remembers}
            path = checkpoint.save(training, self._config, self._ranks, votes)
            self._saved_step = training.step
            self._report.event("checkpoint", training.step, {"path": str(path)})
        self._save_at_s, self._failed_saves = self._next_save_s(), 0
        self._watchdog.beat(f"saving {path}")
        return path

    def _stop_evaluating(self) -> bool:
        """Asked before every batch; whether to stop."""
        self._watchdog.beat(f"evaluation at step {self._training.step}")
        return self._sigterm.asked

    def _report_evaluating(self, done: int, total: int) -> None:
        where = {"batches_done": done, "batches": total}
        self._report.event("evaluating", self._training.step, where)
