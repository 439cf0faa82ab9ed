"""What the rounds have come to, written down: each fact by itself, and none of it needed to end a
box.  When the journal cannot take it the black box still does.
"""

import contextlib
import logging
from collections.abc import Callable

from gpurun.blackbox import BlackBox
from gpurun.clock import Clock
from gpurun.guards import disarm_all
from gpurun.keeper.charges import Charge
from gpurun.model import Ending
from gpurun.outcome import conclude
from gpurun.places import Places
from gpurun.proof import Evidence, Verdict
from gpurun.provider import Provisioner
from gpurun.store import Journal, StoreError

log = logging.getLogger("gpurun.keeper")

STILL_BILLING_AFTER_S = 60.0
TOLD_EVERY_S = 60.0


class Facts:
    """They are never fenced: a fact is recorded whatever else is going on."""

    def __init__(
        self,
        places: Places,
        clock: Clock,
        journal: Journal,
        blackbox: BlackBox,
        cloud_of: Callable[[str], Provisioner],
    ) -> None:
        self._places = places
        self._clock = clock
        self._journal = journal
        self._blackbox = blackbox
        self._cloud_of = cloud_of
        self._told_s: dict[str, float] = {}

    def note(self, write: Callable[[], object]) -> None:
        """A write that may fail."""
        try:
            write()
        except StoreError as error:
            self._places.free_reserve(str(error))
            log.error("%s", error)
        except Exception:  # no fact keeps another one from being written
            log.exception("a write failed")

    def of_round(self, charge: Charge, evidence: Evidence, verdict: Verdict) -> None:
        attempts, label = self._journal.attempts, charge.label
        if charge.attempt is not None:
            if charge.instance_id is None and (found := evidence.instance_id):
                self.note(lambda: attempts.made(label, found, "list", evidence.created_at))
            self.note(lambda: attempts.deleting(label))
            acked = evidence.acked_s is not None
            if not self._has_another(label, evidence.instance_id):
                self.note(lambda: attempts.evidence(label, evidence.to_json(), acked))
        if verdict.gone:
            self._gone(charge, evidence)
            log.info("%s: proven gone (%s)", label, verdict.why)

    def still_billing(self, charge: Charge, lasts_s: float) -> None:
        """Its end has lasted so long already; said anew now and then."""
        now_s = self._clock.boot_s()
        told_s = self._told_s.get(charge.label, float("-inf"))
        if charge.attempt is not None and now_s - told_s >= TOLD_EVERY_S:
            self._told_s[charge.label] = now_s
            run_id = charge.attempt.run_id
            why = f"{charge.label} is not proven gone after {lasts_s:.0f} s"
            self.note(lambda: conclude(self._journal, run_id, unproven=why))

    def _gone(self, charge: Charge, evidence: Evidence) -> None:
        label, proven = charge.label, evidence.instance_id
        if charge.attempt is not None:
            if self._has_another(label, proven):
                return
            run_id, attempt = charge.attempt.run_id, charge.attempt
            cloud = self._cloud_of(charge.provider)
            self.note(lambda: disarm_all(cloud, attempt, self._journal, self._clock))
            self.note(lambda: self._end_run_of(label, run_id))
            self.note(lambda: self._journal.attempts.gone(label, evidence.to_json(), proven))
            self.note(lambda: self._journal.ledger.book(label, "destroy"))
            self.note(lambda: conclude(self._journal, run_id))
        entry = self._blackbox.read().get(label)
        if entry is not None and (not charge.by_id or entry.instance_id == proven):
            with contextlib.suppress(OSError):
                self._blackbox.append(entry.with_state("gone"))

    def _has_another(self, label: str, proven: str | None) -> bool:
        """An answer to its purchase came late, and named another box than a list had."""
        try:
            known = self._journal.attempts.get(label).instance_id
        except StoreError:
            return False
        return known not in (None, proven)

    def _end_run_of(self, label: str, run_id: str) -> None:
        """A box that was ended at its deadline, though nobody could write that it was due."""
        if self._journal.attempts.get(label).ending is None:
            self._journal.endings.end_run(run_id, Ending.DEADLINE, "its timer was due", 0.0)
