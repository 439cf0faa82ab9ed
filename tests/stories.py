"""Journals for tests: real databases, brought by the store's own orders to where a test begins."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

from gpurun.clock import Clock
from gpurun.model import Attempt, AttemptState, Ending, Run, RunState, Timer
from gpurun.places import Places
from gpurun.store import Journal
from gpurun.store.ledger import Caps
from gpurun.timers import timer_for

RECIPE = {"need": {"gpu": "H100", "gpu_count": 4}, "budget": {"max_usd": "13.00"}}
ACCOUNT = "account-1"


@dataclass
class Story:
    """One run in a journal, told step by step."""

    journal: Journal
    clock: Clock
    run_id: str = "run00001"
    usd_per_hour: Decimal = Decimal("3.60")
    provider: str = "local"
    epoch: int = 0

    @property
    def label(self) -> str:
        return f"gpurun-owner1-{self.run_id}-nonce1"

    def begun(self) -> "Story":
        self.journal.runs.add(self.run())
        self.epoch = self.journal.runs.take(self.run_id)
        return self

    def run(self) -> Run:
        return Run(
            id=self.run_id,
            recipe_name="smoke",
            recipe_json=json.dumps(RECIPE),
            recipe_dir="/",
            provider=self.provider,
            runs_dir="/runs",
            options_json="{}",
            state=RunState.ACTIVE,
            phase="rent",
            ending=None,
            reason="",
            exit_code=None,
            error="",
            driver_epoch=0,
            bundle_sha256="ab12",
            created_at=self.clock.now(),
            finished_at=None,
            collected_at=None,
        )

    def rented(self, minutes: float = 10) -> "Story":
        """Sent, made and seen, under a setup timer, with the keeper and a fuse wanted."""
        self.begun()
        guards = [("fuse", True), ("keeper", True)]
        caps = Caps(run_usd=Decimal(13))
        timer = self.timer(1, minutes)
        attempts = self.journal.attempts
        attempts.intend(self.attempt(), timer, guards, Decimal(1), caps, self.epoch)
        attempts.sending(self.label, self.epoch)
        attempts.made(self.label, "i-1", "answer")
        attempts.seen(self.label, self.clock.now(), None)
        return self

    def watched(self) -> "Story":
        """The keeper beats, has listed the account and holds the timer."""
        self.journal.keepers.beat("0.1.0")
        self.journal.keepers.listed(self.provider, ACCOUNT)
        self.journal.timers.acknowledge()
        return self

    def phase(self, name: str) -> int:
        return self.journal.runs.begin_phase(self.run_id, self.label, name, "ab12", self.epoch)

    def gone(self, ending: Ending = Ending.DONE, state: RunState = RunState.DONE) -> "Story":
        """Ended, proven gone, booked, finished with exit 0."""
        self.journal.endings.end_run(self.run_id, ending, "finished", 0)
        self.journal.attempts.evidence(self.label, '{"listings": []}', True)
        self.journal.attempts.gone(self.label, '{"listings": []}')
        self.journal.ledger.book(self.label, "destroy")
        self.journal.runs.finish(self.run_id, state, 0)
        return self

    def attempt(self) -> Attempt:
        return Attempt(
            label=self.label,
            run_id=self.run_id,
            provider=self.provider,
            account_id=ACCOUNT,
            offer_id="77",
            usd_per_hour=self.usd_per_hour,
            ceiling_at=self.clock.now() + timedelta(hours=2),
            state=AttemptState.INTENT,
            ending=None,
            gpu="H100",
            gpu_count=4,
            sent_at=None,
            instance_id=None,
            id_from=None,
            first_seen_at=None,
            created_at=None,
            delete_acked_at=None,
            gone_at=None,
            evidence_json="{}",
        )

    def timer(self, seq: int, minutes: float, kind: str = "setup") -> Timer:
        fires_at = self.clock.now() + timedelta(minutes=minutes)
        ends_at = fires_at + timedelta(minutes=1)
        return timer_for(self.label, seq, kind, fires_at, ends_at, self.clock)


def journal_at(home: Path, clock: Clock) -> Journal:
    """A migrated journal of ours in this state directory."""
    journal = Journal(Places(home).ensure().database, clock)
    journal.database.migrate()
    journal.owner.ensure()
    return journal


def stories(home: Path, clock: Clock, run_ids: Sequence[str]) -> list[Story]:
    journal = journal_at(home, clock)
    return [Story(journal, clock, run_id) for run_id in run_ids]
