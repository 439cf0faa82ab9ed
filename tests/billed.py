"""A box rented from an emulated cloud as the engine does it, beside its journal; time stands still
until it is told to pass, on both sides.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from gpurun import glance, web
from gpurun.clock import Deadline
from gpurun.hardware.models import is_the
from gpurun.keeper.settling import Settling
from gpurun.model import Ending, Need, Order, RunState
from gpurun.provider import Provisioner
from gpurun.store.ledger import Caps
from provisioners.prime import Prime
from provisioners.prime.access import Access
from provisioners.vast import Vast
from tests.clouds.clock import Clock
from tests.clouds.serve import Cloud, cloud
from tests.clouds.stub import StubBoxes
from tests.fakecloud import FakeClock
from tests.stories import Story, journal_at

START = datetime(2026, 11, 21, 12, 20, tzinfo=UTC)
NEED = Need("H100 SXM", 4, 200)
DOWN_GB, UP_GB = 6, 2  # what a run moves
PROOF_S = 25.0  # from the acknowledged DELETE to the proof


def adapter(market: Cloud, clock: FakeClock, api_key: str = "") -> Provisioner:
    """Without patience: nothing is repeated and nothing waits."""
    key = api_key or market.api_key
    http = web.client(market.world.provider, market.url, key, (), clock)
    if market.world.provider == "vast":
        return Vast(http, clock)
    return Prime(Access(key, "the test", market.url), http, is_the)


@dataclass
class Life:
    """One run and its boxes, judged by the meter at every step."""

    home: Path
    market: Cloud
    clock: FakeClock
    cloud: Provisioner
    story: Story
    nonce: int = 0
    ids: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        return f"gpurun-owner1-{self.story.run_id}-nonce{self.nonce}"

    def rent(self, label: str = "") -> None:
        """Ordered, with what may be billed beside the rate written down before."""
        self.nonce += 1
        offer = next(iter(self.cloud.offers(NEED)))
        label, journal = label or self.label, self.story.journal
        attempt = replace(
            self.story.attempt(),
            label=label,
            account_id=self.cloud.account(),
            usd_per_hour=offer.usd_per_hour,
            ceiling_at=self.clock.now() + timedelta(days=9),
        )
        timer = replace(self.story.timer(1, 40), label=label)
        caps = Caps(run_usd=Decimal(90))
        journal.attempts.intend(attempt, timer, [], Decimal(9), caps, self.story.epoch)
        traffic = DOWN_GB * offer.usd_per_gb_down + UP_GB * offer.usd_per_gb_up
        journal.ledger.hold(label, self.cloud.traits.tail_s, traffic)
        journal.attempts.sending(label, self.story.epoch)
        end = self.clock.now() + timedelta(minutes=41)
        order = Order(offer, NEED, label, end, end, offer.usd_per_hour * 2)
        self.ids.append(self.cloud.create(order).instance_id)
        journal.attempts.made(label, self.ids[-1], "answer")
        self.judge()

    def seen(self) -> None:
        row = self.cloud.instance(self.ids[-1])
        assert row is not None
        self.story.journal.attempts.seen(self.label, row.created_at, row.usd_per_hour)
        self.judge()

    def lives(self, seconds: float, step_s: float, phase: str = "") -> None:
        """Time passes; the phase is booked at its end."""
        passed_s = 0.0
        while passed_s < seconds:
            self.passes(min(step_s, seconds - passed_s))
            passed_s += step_s
            self.judge()
        if phase:
            self.story.journal.ledger.book(self.label, phase)
            self.judge()

    def ends(self) -> None:
        """Destroyed and proven gone."""
        journal = self.story.journal
        self.cloud.destroy(self.ids[-1])
        journal.attempts.deleting(self.label)
        journal.attempts.evidence(self.label, "{}", True)
        self.lives(PROOF_S, 5)
        journal.attempts.gone(self.label, "{}")
        self.judge()
        journal.ledger.book(self.label, "destroy")
        self.judge()

    def finished(self) -> None:
        self.story.journal.endings.end_run(self.story.run_id, Ending.DONE, "finished", 0)
        self.story.journal.runs.finish(self.story.run_id, RunState.DONE, 0)

    def passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.market.advance(seconds)

    def judge(self) -> None:
        """Shown money is never below the meter."""
        shown, billed = self.shown_usd(), self.billed_usd()
        assert shown >= billed, f"{self.clock.now()}: shown {shown}, billed {billed}"

    def shown_usd(self) -> Decimal:
        shown = glance.run_document(self.home, self.story.run_id, self.clock.now())
        return Decimal(shown["spent_usd"])

    def billed_usd(self) -> Decimal:
        """Of this run's boxes, by the cloud's own books."""
        lines = self.market.meter().instances
        return sum((line.billed_usd for line in lines if line.id in self.ids), Decimal(0))

    def report(self) -> dict[str, Any]:
        return glance.report_document(self.home, self.story.run_id, self.clock.now())

    def settling(self, cloud_now: Provisioner | None = None) -> Settling:
        """A keeper's, that has just started."""
        return Settling(lambda _name: cloud_now or self.cloud, self.clock, self.story.journal)


def tick(settling: Settling) -> None:
    """One step, and all that it has started."""
    settling.step()
    deadline = Deadline(20)
    while settling.working():
        assert not deadline.passed()


@contextmanager
def life(provider: str, home: Path, start: datetime = START) -> Iterator[Life]:
    clock = FakeClock(start)
    with cloud(provider, boxes=StubBoxes(), clock=Clock(start, rate=0)) as market:
        journal = journal_at(home, clock)
        try:
            story = Story(journal, clock, provider=provider).begun()
            yield Life(home, market, clock, adapter(market, clock), story)
        finally:
            journal.close()
