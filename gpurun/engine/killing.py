"""`kill`: first the ending is written, then driver and keeper are told, then the box is to go.

Nothing that may fail stands before the ending: any keeper goes on from there.  A run whose ending
the journal cannot take is ended by gpurun/engine/unwritten.py.
"""

import json
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from decimal import InvalidOperation
from functools import partial
from typing import TypeVar

from gpurun import keeper
from gpurun.atonce import ask_each
from gpurun.blackbox import BlackBox
from gpurun.clock import Clock
from gpurun.engine import unwritten
from gpurun.engine.context import budget_of
from gpurun.engine.live import FINISHED
from gpurun.engine.unwritten import BUSY_S
from gpurun.errors import GpurunError, ProviderError, StillBilling, UsageError
from gpurun.glance import agreed_clock
from gpurun.keeper.clouds import Clouds
from gpurun.locks import holder
from gpurun.model import Attempt, AttemptState, Ending, Run
from gpurun.places import Places
from gpurun.reaper import ask
from gpurun.recipe import Recipe
from gpurun.settings import Settings
from gpurun.signals import TOLD
from gpurun.store import Journal, StoreError
from gpurun.store.endings import KILL
from gpurun.timers import entry_of, evidence_of

T = TypeVar("T")

ASKED_WITHIN_S = 10.0
LOCKED_S = 15.0  # so long a lock on the journal is waited out, where something may be collected
AGAIN_S = 1.0
BUSY_FIRST_S = 5.0  # once one ending could not be written no other box waits for its own
MADE = (AttemptState.MADE, AttemptState.SEEN, AttemptState.DELETING)


@dataclass(frozen=True, slots=True)
class Killing:
    """What `kill` has done so far about one run.

    proven   its box is gone, and the journal could not be told
    trouble  the journal could not be told that it is to end, nor is its box proven gone
    """

    said: str
    proven: bool = False
    trouble: GpurunError | None = None


def kill(run_ids: Sequence[str], *, collect: bool, settings: Settings) -> dict[str, Killing]:
    """End runs, each as far as it goes: what stands in the way of one stops no other.

    Of those neither proven nor in trouble the journal tells the rest: driver and keeper go on.
    """
    places = Places(settings.state_dir)
    return _Kill(places, settings, agreed_clock(places.root), collect).of(run_ids)


@dataclass(slots=True)
class _Kill:
    """One command, over all the runs that it names."""

    places: Places
    settings: Settings
    clock: Clock
    collect: bool
    said: dict[str, str] = field(default_factory=dict)  # of those whose ending is written
    refused: dict[str, Exception] = field(default_factory=dict)  # of the others
    billing: list[Attempt] = field(default_factory=list)

    def of(self, run_ids: Sequence[str]) -> dict[str, Killing]:
        for run_id in run_ids:
            self.write(run_id, BUSY_S if self.refused else BUSY_FIRST_S)
        if self.collect:
            self._outwait_a_lock()
        for run_id in run_ids:
            _tell_driver(run_id, self.places)
        trouble = self._summon_keeper()
        if not self.collect:
            trouble += self._ask_to_go()
        boxes: list[unwritten.Unproven] = []
        if refused := list(self.refused):
            boxes = unwritten.end(refused, self.places, self.settings, self.clock, self.write)
        return {
            run_id: Killing(self.said[run_id] + trouble)
            if run_id in self.said
            else _unwritten(run_id, self.refused[run_id], [b for b in boxes if b.run_id == run_id])
            for run_id in run_ids
        }

    def write(self, run_id: str, busy_s: float = BUSY_S) -> bool:
        """K1; whether the journal took it."""
        try:
            with closing(Journal(self.places.database, self.clock, busy_s)) as journal:
                _freeing(self.places, partial(self._write, run_id, journal))
        except Exception as error:  # what a damaged journal raises cannot be listed
            self.refused[run_id] = error
            return False
        self.refused.pop(run_id, None)
        return True

    def _write(self, run_id: str, journal: Journal) -> None:
        run, attempts = journal.runs.get(run_id), journal.attempts.of_run(run_id)
        if run.state in FINISHED and not any(attempt.state.may_bill for attempt in attempts):
            self.said[run_id] = f"run {run_id} is already {run.state}: its box is gone"
            return
        grace_s = _grace_s(run) if self.collect else 0.0
        timers = journal.endings.end_run(run_id, Ending.KILL, KILL, grace_s)
        if not self.collect:
            timers = journal.endings.hurry(run_id)
        ours = {attempt.label: attempt for attempt in attempts}
        blackbox = BlackBox(self.places.blackbox, *journal.owner.ensure())
        for timer in timers:
            with suppress(OSError, KeyError):
                blackbox.append(entry_of(ours[timer.label], timer, "deleting"))
        self.billing += [attempt for attempt in attempts if attempt.state in MADE]
        warning = f"Warning: {trouble}. " if (trouble := journal.owner.trouble()) else ""
        self.said[run_id] = f"{warning}run {run_id} is being ended"

    def _outwait_a_lock(self) -> None:
        until_s = self.clock.boot_s() + LOCKED_S
        while self.clock.boot_s() < until_s:
            locked = [each for each, why in self.refused.items() if "locked" in str(why)]
            if not locked:
                return
            self.clock.sleep(AGAIN_S)
            for run_id in locked:
                self.write(run_id)

    def _summon_keeper(self) -> str:
        try:
            keeper.summon(self.places)
        except OSError as error:
            return f"; the keeper cannot be started ({error})"
        return ""

    def _ask_to_go(self) -> str:
        """`--no-collect`: the first DELETE leaves from here; keeper and driver prove it."""
        at = {attempt.provider: attempt for attempt in self.billing}
        heard = ask_each(list(at), self._ask_at, self.clock, ASKED_WITHIN_S)
        whys = "; ".join(str(each.trouble) for each in heard if each.trouble is not None)
        return f"; not yet asked for from here, the keeper goes on: {whys}" if whys else ""

    def _ask_at(self, provider: str) -> None:
        cloud = Clouds(self.places, self.settings, self.clock)(provider)
        whys = []
        for attempt in self.billing:
            if attempt.provider == provider:
                try:
                    ask(evidence_of(attempt, self.clock), cloud, self.clock)
                except Exception as error:  # be it a bug of an adapter's: the next one is to go too
                    whys.append(f"{attempt.label}: {error}")
        if whys:
            raise ProviderError("; ".join(whys))


def _unwritten(run_id: str, error: Exception, boxes: Sequence[unwritten.Unproven]) -> Killing:
    if isinstance(error, UsageError) and not boxes:  # there is no such run
        return Killing(str(error), trouble=error)
    unsaid = f"its end is not written ({error}); " + (
        "the keeper does that once it can"
        if boxes and all(box.noted for box in boxes)
        else "nor could it be noted: the journal will not say that it was killed"
    )
    if not boxes:
        said = f"run {run_id}: nothing of it is known to bill; {unsaid}. Kill it again"
        return Killing(said, trouble=StoreError(said))
    if alive := [f"{box.evidence.label}: {box.why}" for box in boxes if not box.gone]:
        said = f"run {run_id} may still bill: {'; '.join(alive)}; {unsaid}. Kill it again"
        return Killing(said, trouble=StillBilling(said))
    said = f"run {run_id}: its box is proven gone, nothing was fetched; {unsaid}"
    return Killing(said, proven=True)


def _freeing(places: Places, write: Callable[[], T]) -> T:
    """With the room that was kept for it, where the disk is full."""
    try:
        return write()
    except StoreError as error:
        if not places.free_reserve(str(error)):
            raise
        return write()


def _grace_s(run: Run) -> float:
    """For collecting; nothing can be collected by a recipe that cannot be read."""
    try:
        return budget_of(Recipe.from_dict(json.loads(run.recipe_json))).grace_s
    except (GpurunError, ValueError, TypeError, LookupError, AttributeError, InvalidOperation):
        return 0.0


def _tell_driver(run_id: str, places: Places) -> None:
    """K2: it leaves its work, and is not waited for."""
    with suppress(OSError, UsageError):
        if pid := holder(places.run_lock(run_id)):
            os.kill(pid, TOLD)
            os.kill(pid, signal.SIGCONT)
