"""Trainings that go on by themselves, watched by the keeper: no process for each.

A driver leaves its run once the training is on its way (`leave_after_minutes`).  From then on the
keeper looks; whenever there is something to do (it has ended, it hangs, a checkpoint is to be
fetched, the fuse must be armed again) it starts a driver, which sees the same and does it.
"""

import json
import logging
from collections.abc import Callable, Container, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gpurun.blackbox import BlackBox
from gpurun.clock import Clock
from gpurun.engine.context import Context
from gpurun.engine.watch import Asked, Done, Failed, Unreachable, Watcher, watcher_of
from gpurun.errors import GpurunError
from gpurun.guards import fuse_of
from gpurun.keeper.drivers import Drivers
from gpurun.model import Attempt, AttemptState, Run
from gpurun.places import Places
from gpurun.provider import OverSsh, Provisioner
from gpurun.reach import shell_of
from gpurun.recipe import Recipe
from gpurun.settings import Settings
from gpurun.shell import Shell
from gpurun.shell.trouble import HostKeyChanged
from gpurun.store import Journal, StoreError

log = logging.getLogger("gpurun.keeper")

LOOK_EVERY_S = 25.0
TEND_EVERY_S = 60.0
LAGGARD_EVERY_S = 10.0
VISIT_EVERY_S = 600.0  # at most so often is a driver started to fetch a checkpoint
WORKERS = 8


@dataclass(slots=True)
class _Watched:
    """One run that nobody drives."""

    ctx: Context
    attempt: Attempt
    shell: Shell
    watcher: Watcher
    asked: Asked
    due_s: float
    tended_s: float
    visited_s: float
    looked_s: float = float("-inf")
    busy: bool = False
    known: dict[str, Any] = field(default_factory=dict)


class Watches:
    """`step` is called each tick and never waits."""

    def __init__(
        self,
        places: Places,
        settings: Settings,
        clock: Clock,
        journal: Journal,
        blackbox: BlackBox,
        cloud_of: Callable[[str], Provisioner],
        drivers: Drivers,
    ) -> None:
        self._places = places
        self._settings = settings
        self._clock = clock
        self._journal = journal
        self._blackbox = blackbox
        self._cloud_of = cloud_of
        self._drivers = drivers
        self._pool = ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix="watch")
        self._watched: dict[str, _Watched] = {}

    def holds(self, run: Run) -> bool:
        """Whether this run needs no driver now: its training goes on, and it is watched here."""
        return run.id in self._watched or (_trains(run) and self._begin(run))

    def working(self) -> bool:
        return any(each.busy for each in list(self._watched.values()))

    def step(self, runs: Iterable[Run], lagging: Container[str] = ()) -> None:
        """Look at those that are due; forget those that are driven again, ending or over.

        `lagging` are the runs of which a guard could not be moved: they are tended at once, and
        again and again.
        """
        ours = [run for run in runs if run.id in self._watched]
        live = {run.id for run in ours if _trains(run) and not self._drivers.drives(run.id)}
        for run_id in [each for each in list(self._watched) if each not in live]:
            self._watched.pop(run_id, None)
        now_s = self._clock.boot_s()
        for each in list(self._watched.values()):  # a look that has found news takes itself out
            lags = each.ctx.run.id in lagging
            due_s = min(each.due_s, each.looked_s + LAGGARD_EVERY_S) if lags else each.due_s
            if not each.busy and now_s >= due_s:
                each.busy, each.looked_s, each.due_s = True, now_s, now_s + LOOK_EVERY_S
                each.tended_s = float("-inf") if lags else each.tended_s
                self._pool.submit(self._look, each)

    def _begin(self, run: Run) -> bool:
        try:
            attempts = self._journal.attempts.of_run(run.id)
            cloud = self._cloud_of(run.provider)
            if not attempts or attempts[-1].state is not AttemptState.SEEN:
                return False
            attempt = attempts[-1]
            assert attempt.instance_id is not None
            if not isinstance(cloud, OverSsh):
                return False
            ctx = Context(
                places=self._places,
                settings=self._settings,
                clock=self._clock,
                journal=self._journal,
                blackbox=self._blackbox,
                run=run,
                recipe=Recipe.from_dict(json.loads(run.recipe_json)),
                clouds=self._cloud_of,
                epoch=run.driver_epoch,
            )
            shell = shell_of(cloud, attempt.instance_id, self._places)
            train_log = self._places.run_dir(run.id) / "train.log"
            now_s = self._clock.boot_s()
            self._watched[run.id] = _Watched(
                ctx=ctx,
                attempt=attempt,
                shell=shell,
                watcher=watcher_of(ctx, shell, train_log),
                asked=Asked(ctx),
                due_s=now_s,
                tended_s=now_s,
                visited_s=now_s,
            )
        except (GpurunError, OSError, ValueError) as error:
            log.error("run %s cannot be watched: %s", run.id, error)
            return False
        return True

    def _look(self, each: _Watched) -> None:
        try:
            if why := self._needs_driver(each):
                log.info("run %s: %s", each.ctx.run.id, why)
                self._watched.pop(each.ctx.run.id, None)
                self._drivers.start(each.ctx.run.id)
        except Exception:  # whatever a box says: the next look comes
            log.exception("looking at run %s failed", each.ctx.run.id)
        finally:
            each.busy = False

    def _needs_driver(self, each: _Watched) -> str:
        """One look; why a driver is needed, else nothing."""
        try:
            outcome = each.watcher.step()
        except HostKeyChanged as error:
            return str(error)
        document = each.watcher.document()
        if document != each.known:
            each.known = document
            with suppress(StoreError):
                self._journal.runs.progress(each.ctx.run.id, document)
        match outcome:
            case Done(reason):
                return reason
            case Failed():
                return outcome.error
            case Unreachable():
                return each.asked.gives_up(outcome)
        now_s = self._clock.boot_s()
        if each.watcher.behind:
            each.due_s = now_s
        if now_s - each.tended_s >= TEND_EVERY_S:
            each.tended_s = now_s
            return self._tend(each)
        return ""

    def _tend(self, each: _Watched) -> str:
        """Money so far, the fuse as it is read to be, checkpoints that nobody has fetched."""
        journal, label, run_id = self._journal, each.attempt.label, each.ctx.run.id
        journal.ledger.book(label, "train")
        timer = journal.timers.of(label)
        fuse = fuse_of(each.ctx.cloud, each.attempt, journal, self._clock, each.shell)
        if fuse is not None and timer is not None:
            state = fuse.read()
            if state is not None and not state.holds(timer.seq):
                return "its fuse must be armed again"
        newest, last = each.watcher.progress.checkpoint_at, journal.runs.get(run_id).collected_at
        due = self._clock.boot_s() - each.visited_s >= VISIT_EVERY_S
        if newest is not None and (last is None or newest > last) and due:
            return "a checkpoint is to be fetched"
        return ""


def _trains(run: Run) -> bool:
    """Of a box that stays a driver holds the door: it has more to do than to watch."""
    try:
        stays = json.loads(run.options_json).get("stays")
    except (ValueError, AttributeError):  # a damaged row keeps no other from being watched
        return False
    return run.ending is None and run.phase == "train" and not stays
