"""Two accounts that stand still, at emulated clouds, and a home that has the keys of both."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest

from gpurun import engine
from gpurun import settings as configuration
from gpurun.blackbox import BlackBox
from gpurun.clock import SystemClock
from gpurun.engine.orphans import Survey
from gpurun.holdings import Orphan, Whose
from gpurun.locks import hold
from gpurun.model import Need, Order
from gpurun.provider import Provisioner
from gpurun.store.ledger import Caps
from gpurun.timers import entry_of
from gpurun.wiring import provisioner
from tests.clouds.clock import Clock
from tests.clouds.serve import Cloud, cloud
from tests.clouds.stub import StubBoxes
from tests.fakecloud import FakeClock
from tests.homes import Home
from tests.stories import Story, journal_at

START = datetime(2026, 11, 21, 12, 20, tzinfo=UTC)
NEED = Need("H100 SXM", 4, 200)


class Accounts:
    """Two accounts that stand still, what is rented there, and a home with their keys."""

    def __init__(self, home: Home, vast: Cloud, prime: Cloud) -> None:
        self.home, self.vast, self.prime = home, vast, prime
        self.clock = FakeClock(START)
        for each in (vast, prime):
            home.open_account(each)

    def rent(self, at: Cloud, label: str) -> str:
        """The id of a box that runs; the console has taken its label, where that is empty."""
        adapter = self.adapter(at)
        offer = next(iter(adapter.offers(NEED)))
        ends_at = START + timedelta(hours=9)
        order = Order(offer, NEED, label or "x", ends_at, ends_at, offer.usd_per_hour * 2)
        made = adapter.create(order).instance_id
        at.advance(2)
        if not label:
            self.relabel(at, made, "")
        return made

    def relabel(self, at: Cloud, instance_id: str, label: str) -> None:
        at.fault("relabel", instance=instance_id, label=label)
        at.clear("relabel")

    def disk(self) -> str:
        wanted = {"disk": {"size": 1000, "name": "old"}, "provider": {"type": "datacrunch"}}
        answer = httpx.post(
            f"{self.prime.url}/api/v1/disks", json=wanted, headers=self.prime.headers
        )
        return f"disk:{answer.json()['id']}"

    def run_of(
        self, at: Cloud, *, answered: bool = True, run_id: str = "run00001"
    ) -> tuple[Story, str]:
        """A live run there and the id of its box; its purchase was answered, or it was not."""
        journal = journal_at(self.home.places.root, self.clock)
        story = Story(journal, self.clock, run_id, provider=at.world.provider).begun()
        caps = Caps(run_usd=Decimal(13))
        attempt = replace(story.attempt(), account_id=self.adapter(at).account())
        journal.attempts.intend(
            attempt, story.timer(1, 10), [("keeper", True)], Decimal(1), caps, story.epoch
        )
        journal.attempts.sending(story.label, story.epoch)
        made = self.rent(at, story.label)
        if answered:
            row = self.adapter(at).instance(made)
            assert row is not None
            journal.attempts.made(story.label, made, "answer")
            journal.attempts.seen(story.label, row.created_at, None)
        else:
            journal.attempts.unclear(story.label, "no answer")
        return story, made

    def trace(self, story: Story) -> None:
        """Its line in the black box."""
        attempt, timer = (
            story.journal.attempts.get(story.label),
            story.journal.timers.of(story.label),
        )
        assert timer is not None
        black = BlackBox(self.home.places.blackbox, "owner1", "machine")
        black.append(entry_of(attempt, timer, attempt.state))

    def spoil_journal(self) -> None:
        for path in self.home.places.root.glob("gpurun.db*"):
            path.write_bytes(b"not a database" * 1000)

    def survey(self, *providers: str, within_s: float = 15) -> Survey:
        return engine.orphans(
            configuration.load(), SystemClock(), providers or None, within_s=within_s
        )

    def whose(self) -> dict[str, Whose]:
        found = self.survey()
        assert found.troubles == ()
        return {orphan.row.id: orphan.whose for orphan in found.orphans}

    def only(self) -> Orphan:
        [orphan] = self.survey().orphans
        return orphan

    def end(self, orphan: Orphan) -> list[str]:
        """DELETE and PROOF on a clock that jumps; what was said meanwhile, a minute each."""
        said: list[str] = []

        def say(line: str) -> None:
            said.append(line)
            self.vast.advance(60)
            self.prime.advance(60)

        engine.end_orphan(orphan, configuration.load(), self.clock, say)
        return said

    def shown(self, *more: str, code: int = 0) -> dict[str, Any]:
        done = self.home.run("orphans", "--json", *more)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def alive(self, at: Cloud) -> set[str]:
        return {line.id for line in at.meter().instances if line.alive}

    def adapter(self, at: Cloud) -> Provisioner:
        return provisioner(at.world.provider, configuration.load(), self.clock)


@contextmanager
def accounts_of(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Accounts]:
    """No command starts a keeper meanwhile; this process has the home's environment too."""
    with (
        cloud("vast", boxes=StubBoxes(), clock=Clock(START, rate=0)) as vast,
        cloud("prime", boxes=StubBoxes(), clock=Clock(START, rate=0)) as prime,
        hold(home.places.keeper_lock),
    ):
        found = Accounts(home, vast, prime)
        for name in ("VAST_API_KEY", "PRIME_API_KEY"):
            monkeypatch.delenv(name, raising=False)
        for name, value in home.env.items():
            monkeypatch.setenv(name, value)
        yield found
