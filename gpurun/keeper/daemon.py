"""One tick of the keeper: acknowledge, fire, end, list, take over.  It needs no writable journal.

All durable truth is in the journal and the black box; a restart derives everything again.
"""

import contextlib
import logging
from collections.abc import Callable
from functools import partial

from gpurun import __version__
from gpurun.blackbox import BlackBox
from gpurun.clock import Clock
from gpurun.engine.late import late_collect_s
from gpurun.keeper.ahead import AheadOfJournal
from gpurun.keeper.alone import alone
from gpurun.keeper.changes import Changes
from gpurun.keeper.charges import Charge, Charges
from gpurun.keeper.drivers import Drivers
from gpurun.keeper.due import Due
from gpurun.keeper.facts import STILL_BILLING_AFTER_S, Facts
from gpurun.keeper.hostkeys import HostKeys
from gpurun.keeper.lagging import Laggards
from gpurun.keeper.lists import WATCHED_S, Lists
from gpurun.keeper.mending import Mending
from gpurun.keeper.merge import Kills
from gpurun.keeper.notices import Notices
from gpurun.keeper.obligations import Obligations
from gpurun.keeper.rounds import Rounds
from gpurun.keeper.settling import Settling
from gpurun.keeper.watches import Watches
from gpurun.model import AttemptState, Run
from gpurun.outcome import conclude
from gpurun.places import Places
from gpurun.provider import Provisioner
from gpurun.settings import Settings
from gpurun.store import Journal
from gpurun.store.boots import hold_by_this_boot
from gpurun.timers import entry_of

log = logging.getLogger("gpurun.keeper")

IDLE_BEAT_S = 10.0
NEEDS_HANDS = (
    AttemptState.INTENT,
    AttemptState.SENDING,
    AttemptState.UNCLEAR,
    AttemptState.MADE,
    AttemptState.SEEN,
)
RUNS_EVERY_S = 1.5  # ticks are not exact
WRITES_FOR_S = 0.5  # a tick is to end before the next one


class Keeper:
    """Called once a second; every method returns at once."""

    def __init__(
        self,
        places: Places,
        settings: Settings,
        clock: Clock,
        journal: Journal,
        blackbox: BlackBox,
        cloud_of: Callable[[str], Provisioner],
    ) -> None:
        self._places = places
        self._settings = settings
        self._clock = clock
        self._journal = journal
        self.blackbox = blackbox
        self._drivers = Drivers(places, clock, cloud_of)
        self.mending = Mending(journal, blackbox, clock)
        self._lists = Lists(cloud_of, clock, journal, blackbox, settings)
        self._due = Due(cloud_of, clock, self._lists.has_answered)
        self._facts = Facts(places, clock, journal, blackbox, cloud_of)
        self._rounds = Rounds(cloud_of, clock, self._facts.of_round, self._lists.shows)
        self._settling = Settling(cloud_of, clock, journal)
        self._obligations = Obligations(cloud_of, clock, journal)
        self._ahead = AheadOfJournal(cloud_of, clock, journal, blackbox, settings)
        laggards = Laggards(self._obligations.words_of, journal, clock)
        self._charges = Charges(journal, blackbox, laggards)
        self._watches = Watches(places, settings, clock, journal, blackbox, cloud_of, self._drivers)
        self._kills = Kills(journal, blackbox)
        self._hostkeys = HostKeys(places, clock, journal)
        self._notices = Notices(places, settings, clock, journal)
        self._changes = Changes(places.database)
        self._beat_s = 0.0
        self._waiting: set[str] = set()  # labels whose timer is to fire when there is time
        self._runs: list[Run] = []
        self._runs_s = float("-inf")
        self.busy = True

    def tick(self) -> None:
        try:
            if self._nothing_new():
                return
            alone(self.mending.step)
            self._facts.note(self._kills.step)
            charges = self._charges.read()
            for back in self._lists.back():
                alone(partial(self._rounds.step, back))
            look_at_runs = self._is_time_for_runs()
            if look_at_runs:
                self._runs = self._unfinished()
            self.busy = bool(charges or self._runs or self._rounds.pursues())
            self._beat()
            self._facts.note(self._journal.timers.acknowledge)
            self._hold(charges)
            self._enforce(charges)
            alone(self._settling.step)
            self._expire(charges)
            alone(self._ahead.step)
            alone(self._obligations.step)
            if look_at_runs:
                self._look_at(self._runs, charges)
            alone(self._notices.step)
            alone(self._hostkeys.step)
        except Exception:  # a tick that fails is a line in the log; the next one comes in a second
            log.exception("tick failed")

    def working(self) -> bool:
        """Whether something that a tick started is still under way."""
        parts = (self._rounds, self._lists, self._settling, self._obligations, self._watches)
        return any(part.working() for part in (*parts, self._notices))

    def _nothing_new(self) -> bool:
        """Idle, and no other process has written: spend nothing."""
        changed = self._changes.since_last()
        recent = self._clock.boot_s() - self._beat_s < IDLE_BEAT_S
        return not self.busy and not changed and recent

    def _beat(self) -> None:
        self._beat_s = self._clock.boot_s()
        self._facts.note(lambda: self._journal.keepers.beat(__version__))
        if not self.busy:
            self._changes.since_last()  # our own beat is no news

    def _hold(self, charges: list[Charge]) -> None:
        """By the boot clock, now that the time of day is certain; whoever drives takes it over."""
        old = any(each.timer and not each.is_certain(self._clock) for each in charges)
        if old and self._clock.sure:
            self._facts.note(lambda: hold_by_this_boot(self._journal.database, self._clock))

    def _unfinished(self) -> list[Run]:
        try:
            return self._journal.runs.unfinished()
        except Exception as error:  # no timer waits for it
            log.error("the runs cannot be read: %s", error)
            return []

    def _enforce(self, charges: list[Charge]) -> None:
        """What must be gone first.  The writes of a thousand at once are made in several ticks; a
        box whose end comes before its turn is ended all the same.
        """
        self._rounds.keep({charge.label for charge in charges})
        waited, self._waiting = self._waiting, set()
        overdue = {each.label for each in charges if each.label in waited and self._due.ends(each)}
        for charge in charges:
            if charge.is_ending or charge.label in overdue:
                alone(partial(self._end, charge))
        self._rounds.begin()
        until_s = self._clock.boot_s() + WRITES_FOR_S
        for charge in charges:
            if charge.is_ending:
                continue
            must = self._due.ends(charge) and charge.label not in overdue
            quick = not self._due.fires(charge)
            if quick or must or self._clock.boot_s() < until_s:
                alone(partial(self._serve, charge))
            else:
                self._waiting.add(charge.label)
        self._rounds.begin()
        for charge, lasts_s in self._rounds.lasting(STILL_BILLING_AFTER_S):
            if self._clock.boot_s() < until_s:
                self._facts.still_billing(charge, lasts_s)

    def _is_time_for_runs(self) -> bool:
        """Timers are looked at each second, the runs around them every other one."""
        now_s = self._clock.boot_s()
        if self._runs and now_s - self._runs_s < RUNS_EVERY_S:
            return False
        self._runs_s = now_s
        return True

    def _look_at(self, runs: list[Run], charges: list[Charge]) -> None:
        doubtful = [each for each in charges if self._due.in_doubt(each)]
        ask = {each.provider for each in doubtful}
        self._lists.step({run.provider for run in runs} | ask, ask)
        waiting = {each.attempt.run_id for each in doubtful if each.attempt}
        runs = [run for run in runs if run.id not in waiting]
        lagging = {each.attempt.run_id for each in charges if each.attempt and each.laggard}
        alone(partial(self._watches.step, runs, lagging))
        for run in runs:
            alone(partial(self._take_over, run))

    def _serve(self, charge: Charge) -> None:
        if self._due.fires(charge) and self._fire(charge):
            return  # the next tick has the timer that was written just now
        self._end(charge)

    def _end(self, charge: Charge) -> None:
        if charge.attempt is not None and charge.attempt.state is AttemptState.INTENT:
            return  # nothing was sent
        if self._due.ends(charge) or self._abandoned(charge):
            self._rounds.step(charge)

    def _abandoned(self, charge: Charge) -> bool:
        """Being destroyed, and its driver is gone."""
        attempt = charge.attempt
        if attempt is None or attempt.state is not AttemptState.DELETING:
            return False
        return not self._drivers.drives(attempt.run_id)

    def _fire(self, charge: Charge) -> bool:
        """T: the run begins to end; its driver is told, or another one started to collect.

        True when that was written just now: a new timer is in force.
        """
        if charge.timer is None or charge.attempt is None:
            return False
        try:
            if charge.attempt.ending is not None:
                return False
            run = self._journal.runs.get(charge.attempt.run_id)
            began = self._journal.runs.began(run.id, "train")
            late_s = late_collect_s(run.recipe_json, self._settings) if began else 0.0
            reason = charge.why()
            timers = self._journal.endings.fire(charge.timer, run.id, reason, late_s)
            if timers is None:  # claimed before; or it has just been given another one
                now = self._journal.timers.of(charge.label)
                return now is not None and now.seq != charge.seq
            for timer in timers:
                attempt = self._journal.attempts.get(timer.label)
                with contextlib.suppress(OSError):
                    self.blackbox.append(entry_of(attempt, timer, "deleting"))
            ends = self._journal.runs.get(run.id).ending is not None
        except Exception as error:  # neither a bad row nor a bug keeps a box alive
            log.error("timer of %s fired, not recorded: %r", charge.label, error)
            return False
        log.info("%s: %s", charge.label, reason)
        if ends:
            self._drivers.tell(run.id)
        return True

    def _expire(self, charges: list[Charge]) -> None:
        for charge in charges:
            attempt = charge.attempt
            if attempt is None or attempt.state is not AttemptState.GHOST or not attempt.sent_at:
                continue
            if self._due.in_doubt(charge):
                continue
            if (self._clock.now() - attempt.sent_at).total_seconds() > WATCHED_S:
                self._facts.note(partial(self._journal.attempts.expired, charge.label))

    def _take_over(self, run: Run) -> None:
        if not self._drivers.lost(run) or self._watches.holds(run):
            return
        if run.ending is not None and not self._needs_hands(run):
            self._facts.note(lambda: conclude(self._journal, run.id))
            return
        self._drivers.start(run.id)

    def _needs_hands(self, run: Run) -> bool:
        """Whether a driver could still do something that the keeper's rounds cannot."""
        return any(
            attempt.state in NEEDS_HANDS for attempt in self._journal.attempts.of_run(run.id)
        )
