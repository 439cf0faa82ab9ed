"""`extend` killed between its writes, and guards that know more than the journal (protocol 8, W6).

The run then goes on to its new end with every guard at that, and somebody is told.
"""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from sqlmodel import select

from gpurun import web
from gpurun.blackbox import BlackBox
from gpurun.clock import Deadline
from gpurun.engine.limits import period_caps
from gpurun.guards import AtProvider, at_provider
from gpurun.keeper import ahead
from gpurun.keeper.ahead import AheadOfJournal
from gpurun.keeper.obligations import Obligations
from gpurun.model import Need, Order, Timer
from gpurun.places import Places
from gpurun.settings import Settings
from gpurun.store import Journal
from gpurun.store.ledger import Caps
from gpurun.store.periods import rooms
from gpurun.store.tables import EventRow
from gpurun.timers import timer_for
from provisioners.vast import Vast
from tests.chaos import inside
from tests.clouds.clock import Clock
from tests.clouds.serve import Cloud, cloud
from tests.clouds.stub import StubBoxes
from tests.clouds.vast.world import VastWorld
from tests.fakecloud import FakeClock
from tests.homes import WAITS, Home
from tests.stories import Story, journal_at

START = datetime(2026, 11, 21, 12, 20, tzinfo=UTC)
HOUR = timedelta(hours=1)
CAPS = Caps(Decimal(13))


@pytest.fixture
def market() -> Iterator[Cloud]:
    with cloud("vast", boxes=StubBoxes(), clock=Clock(START, rate=0)) as market:
        yield market


class Half:
    """A box at Vast whose timer ends at 12:51, Vast's own at 13:00; to be moved by an hour."""

    def __init__(self, market: Cloud, root: Path) -> None:
        self.clock = FakeClock(START)
        self.market = market
        self.vast = Vast(web.client("vast", market.url, market.api_key, (), self.clock), self.clock)
        self.journal = journal_at(root, self.clock)
        self.story = Story(self.journal, self.clock, provider="vast")
        self.story.begun()
        wanted = [("keeper", True), ("fuse", True), ("provider", True)]
        attempts, label = self.journal.attempts, self.story.label
        timer = self.story.timer(1, 30)
        attempts.intend(self.story.attempt(), timer, wanted, Decimal(2), CAPS, self.story.epoch)
        attempts.sending(label, self.story.epoch)
        offer = next(iter(self.vast.offers(Need("H100", 4, 100))))
        order = Order(offer, Need("H100", 4, 100), label, START, START, Decimal(10))
        attempts.made(label, self.vast.create(order).instance_id, "answer")
        attempts.seen(label, START, None)
        market.advance(1)
        self.blackbox = BlackBox(Places(root).blackbox, *self.journal.owner.ensure())
        self.scheduled.arm(timer)
        self.journal.timers.guard(label, "fuse", "armed", seq=1, ends_at=timer.ends_at)
        self.old = timer
        self.new = timer_for(
            label, 2, "setup", timer.fires_at + HOUR, timer.ends_at + HOUR, self.clock
        )
        self.settings = Settings.model_construct()
        self.keeper_begins()

    def keeper_begins(self) -> None:
        self.owed = Obligations(lambda _name: self.vast, self.clock, self.journal)
        self.ahead = AheadOfJournal(
            lambda _name: self.vast, self.clock, self.journal, self.blackbox, self.settings
        )

    @property
    def scheduled(self) -> AtProvider:
        found = at_provider(self.vast, self.journal.attempts.get(self.story.label), self.journal)
        assert found is not None
        return found

    def arming(self) -> None:
        self.journal.timers.arming(self.new, self.story.run_id, self.story.epoch, Decimal(8), CAPS)

    def ticks(self, seconds: float) -> None:
        for _ in range(round(seconds / 5)):
            self.clock.advance(5)
            self.ahead.step()
            self.owed.step()
            deadline = Deadline(60, poll_s=0.005)
            while self.owed.working():
                assert not deadline.passed()

    @property
    def in_force(self) -> Timer:
        timer = self.journal.timers.of(self.story.label)
        assert timer is not None
        return timer

    def at_vast(self) -> list[str]:
        world = self.market.world
        assert isinstance(world, VastWorld)
        return [f"{job.start:%H:%M}" for job in world.jobs.values()]

    def notes(self) -> list[str]:
        with self.journal.database.read() as session:
            found = session.exec(select(EventRow).where(EventRow.what == "note"))
            return [row.detail for row in found]


@pytest.fixture
def half(market: Cloud, tmp_path: Path) -> Iterator[Half]:
    made = Half(market, tmp_path)
    yield made
    made.journal.close()


@pytest.mark.parametrize("reached", ["journal", "removed", "provider", "fuse", "in force"])
def test_wherever_an_extension_was_stopped_the_keeper_completes_it(
    half: Half, reached: str
) -> None:
    timers, label = half.journal.timers, half.story.label
    half.arming()
    if reached == "removed":  # Vast's job is deleted before the next one is made
        timers.guard(label, "provider", "arming")
        half.vast.disarm_provider_timer(str(half.journal.attempts.get(label).instance_id))
    if reached in ("provider", "fuse"):
        half.scheduled.arm(half.new)
    if reached == "fuse":
        timers.guard(label, "fuse", "armed", seq=2, ends_at=half.new.ends_at)
    if reached == "in force":
        assert timers.put_in_force(half.new)
    half.ticks(15)
    if reached != "in force":
        assert half.in_force == half.old, "whoever extends is let be"
    half.ticks(45)
    assert (half.in_force.seq, half.at_vast()) == (2, ["14:00"])
    said = "stopped half way; the keeper has put its timer in force: it ends the box at 13:51:00"
    assert [said in note for note in half.notes()] == ([] if reached == "in force" else [True])
    assert timers.put_in_force(half.new), "as one that was only slow finds it"


def test_a_timer_that_fired_meanwhile_is_not_taken_back(half: Half) -> None:
    """W3."""
    half.arming()
    half.ticks(10)
    assert half.journal.endings.fire(half.old, half.story.run_id, "the timer fired", 0.0)
    half.ticks(60)
    assert half.in_force.kind == "ending"
    assert half.in_force.ends_at == half.old.ends_at
    assert not half.journal.timers.put_in_force(half.new)


def test_a_driver_that_died_before_its_launch_gives_no_run_timer(half: Half) -> None:
    """The setup timer rules until a takeover has armed the next one (A1)."""
    half.new = replace(half.new, kind="run")
    half.arming()
    half.ticks(60)
    assert half.in_force == half.old


def test_a_price_that_rises_meanwhile_is_paid_by_no_reservation_of_before(half: Half) -> None:
    half.arming()
    traits = half.vast.traits
    moved = half.journal.prices.risen(half.story.label, Decimal("7.20"), traits, ())
    assert moved is not None
    assert (moved.seq, moved.ends_at) == (3, half.old.ends_at)
    half.ticks(60)
    assert half.in_force == moved
    assert half.at_vast() == ["13:00"]


def test_a_provider_that_could_not_be_moved_is_moved_within_seconds(half: Half) -> None:
    """Its old hour may be minutes away: nobody waits until it is to be read again anyway."""
    half.ticks(60)
    half.arming()
    half.market.fault("server_error", endpoint="schedules")
    assert half.journal.timers.put_in_force(half.new)
    half.ticks(30)
    assert half.at_vast() == ["13:00"]
    half.market.clear()
    half.ticks(20)
    assert half.at_vast() == ["14:00"]


@pytest.mark.parametrize(
    ("hours", "seq", "ends_at"),
    [(1, 7, "13:51"), (1.2, 7, "14:03"), (9, 8, "14:20")],
    ids=["guard", "later", "ceiling"],
)
def test_a_guard_that_holds_a_later_timer_than_a_restored_journal_is_followed(
    half: Half, hours: float, seq: int, ends_at: str
) -> None:
    """W6, F41: as far as the box was rented for; nothing is bought until a human has looked."""
    later = half.old.ends_at + timedelta(hours=hours)
    half.journal.timers.guard(half.story.label, "fuse", "armed", seq=7, ends_at=later)
    half.ticks(15)
    assert (half.in_force.seq, f"{half.in_force.ends_at:%H:%M}") == (seq, ends_at)
    assert half.in_force.ends_at - half.in_force.fires_at == timedelta(minutes=1)
    assert "keeper adopt" in half.journal.owner.trouble()
    assert half.blackbox.read()[half.story.label].seq == seq
    assert "the fuse held a later timer than the journal" in half.notes()[0]
    assert half.journal.ledger.committed_usd(half.story.run_id) <= CAPS.run_usd
    half.ticks(60)
    assert len(half.notes()) == 1


def test_a_guard_that_claims_more_than_the_money_pays_gets_no_more(half: Half) -> None:
    """I24: what a box says never lengthens its life past what was agreed."""
    half.clock.advance(20 * 60)
    with half.journal.database.write() as session:
        session.connection().exec_driver_sql("UPDATE instances SET usd_per_hour='36'")
    half.journal.timers.guard(
        half.story.label, "fuse", "armed", seq=7, ends_at=half.old.ends_at + 9 * HOUR
    )
    half.ticks(15)
    assert half.journal.ledger.committed_usd(half.story.run_id) <= CAPS.run_usd
    assert half.in_force.ends_at < half.clock.now() + timedelta(minutes=1)


def test_a_guard_that_claims_more_than_a_cap_lets_through_gets_no_more(half: Half) -> None:
    half.settings = Settings.model_construct(max_usd_per_day=Decimal(3))
    half.keeper_begins()
    later = half.old.ends_at + 9 * HOUR
    half.journal.timers.guard(half.story.label, "fuse", "armed", seq=7, ends_at=later)
    half.ticks(15)
    assert half.in_force.seq == 8
    assert half.in_force.ends_at < START + HOUR
    caps = period_caps(half.settings, "vast", half.clock.now())
    with half.journal.database.read() as session:
        [room] = rooms(session, caps)
    assert room.counted_usd <= Decimal(3)


def killed_at(home: Home, run: str, point: str) -> None:
    """`gpurun extend`, killed as soon as this point of the journal is on the disk."""
    folder = home.root / "killed"
    folder.mkdir()
    (folder / "deeds.json").write_text(f'[{{"who": "cli", "point": "{point}"}}]')
    entry = Path(inside.__file__).parent / "entry"
    kept = dict(home.env)
    paths = (str(entry), str(Path(__file__).parents[1]), kept.get("PYTHONPATH", ""))
    home.env |= {"PYTHONPATH": os.pathsep.join(paths), inside.FOLDER: str(folder)}
    extending = home.start("extend", run, "10m", "--yes")
    home.env = kept
    home.until((folder / "asked.0").exists)
    os.kill(extending.pid, signal.SIGKILL)
    extending.communicate()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("point", ["Timers.arming", "Timers.guard"])
def test_a_run_whose_extension_was_killed_gets_its_new_end_on_every_guard(
    home: Home, point: str
) -> None:
    run = home.up(home.recipe(train=WAITS, run_minutes=60))
    home.until_phase(run, "train", within_s=180)
    home.until(lambda: {guard["state"] for guard in home.document(run)["guards"]} == {"armed"})
    before = home.document(run)["timer"]
    killed_at(home, run, point)
    journal: Journal = home.journal()
    home.until(lambda: not journal.timers.half_done(), within_s=10 * ahead.LET_BE_S)
    journal.close()
    seq = before["seq"] + 1
    assert home.document(run)["timer"]["seq"] == seq
    home.until(lambda: {g["seq"] for g in home.document(run)["guards"]} == {seq}, within_s=300)
    after = home.document(run)["timer"]
    assert after["effective_by"] == "keeper"
    later = datetime.fromisoformat(after["ends_at"]) - datetime.fromisoformat(before["ends_at"])
    assert abs(later - timedelta(minutes=10)) < timedelta(seconds=2)
    assert home.run("kill", run, "--yes", "--no-collect").returncode == 0
