"""The keeper's tick over a real journal, with a clock and a cloud that a test holds in its hand."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from gpurun.blackbox import BlackBox
from gpurun.clock import Deadline
from gpurun.keeper.daemon import Keeper
from gpurun.keeper.merge import merge_blackbox
from gpurun.locks import hold
from gpurun.model import AttemptState, Ending, GuardState, Need, Offer, Order, RunState
from gpurun.places import Places
from gpurun.settings import Settings
from gpurun.store import Journal
from gpurun.store.ledger import Caps
from gpurun.store.owner import machine_hash
from gpurun.timers import entry_of, timer_for
from tests.fakecloud import FakeClock, FakeCloud
from tests.stories import Story
from tests.test_store import LABEL


class World:
    """A keeper, its journal, its cloud; `tick` also waits for the rounds that it started."""

    def __init__(self, root: Path, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.cloud = FakeCloud(self.clock)
        self.places = Places(root / "state").ensure()
        self.journal = Journal(self.places.database, self.clock)
        self.journal.database.migrate()
        self.blackbox = BlackBox(
            self.places.blackbox, self.journal.owner.ensure()[0], machine_hash()
        )
        self.keeper = Keeper(
            self.places,
            Settings.model_construct(),
            self.clock,
            self.journal,
            self.blackbox,
            lambda _name: self.cloud,
        )
        self.story = Story(self.journal, self.clock, provider=self.cloud.name)
        self.journal.runs.add(self.story.run())
        self.epoch = self.journal.runs.take("run00001")

    def rent(self, minutes: float = 10) -> None:
        self.rent_for(self.story, self.epoch, minutes)

    def rent_more(self, number: int, minutes: float) -> str:
        """For a run of its own, whose id is returned."""
        story = Story(self.journal, self.clock, f"run1{number:04}", provider=self.cloud.name)
        self.rent_for(story.begun(), story.epoch, minutes)
        return story.run_id

    def rent_for(self, story: Story, epoch: int, minutes: float) -> None:
        label, attempts = story.label, self.journal.attempts
        self.rented_at = self.clock.now()
        made = replace(story.attempt(), account_id=self.cloud.account_id)
        fires_at = self.clock.now() + timedelta(minutes=minutes)
        timer = timer_for(label, 1, "setup", fires_at, fires_at + timedelta(minutes=1), self.clock)
        guards = [("keeper", True), ("fuse", True), ("provider", True)]
        attempts.intend(made, timer, guards, Decimal(1), Caps(Decimal(10)), epoch)
        attempts.sending(label, epoch)
        offer = Offer("fake", "1", None, 0, Decimal("3.60"), 10)
        order = Order(offer, Need(None, 0, 10), label, timer.fires_at, timer.ends_at, Decimal(10))
        created = self.cloud.create(order)
        attempts.made(label, created.instance_id, "answer")
        attempts.seen(label, self.clock.now(), None)
        self.blackbox.append(entry_of(attempts.get(label), timer, "seen"))

    def read(self, name: str, seq: int, minutes: float) -> None:
        """This guard was read back: it ends the box so long after it was rented."""
        ends_at = self.rented_at + timedelta(minutes=minutes)
        self.journal.timers.guard(LABEL, name, "armed", seq=seq, ends_at=ends_at)

    def extend(self, minutes: float) -> None:
        """The keeper holds a later timer; what the other guards hold, a test says."""
        ends_at = self.rented_at + timedelta(minutes=minutes + 1)
        fires_at = ends_at - timedelta(minutes=1)
        timer = timer_for(LABEL, 2, "run", fires_at, ends_at, self.clock)
        caps = Caps(Decimal(10))
        self.journal.timers.arming(timer, "run00001", self.epoch, Decimal(2), caps)
        assert self.journal.timers.put_in_force(timer)

    def tick(self, times: int = 1, apart_s: float = 1) -> None:
        for _ in range(times):
            self.clock.advance(apart_s)
            self.keeper.tick()
            deadline = Deadline(10, poll_s=0.005)
            while self.keeper.working() and not deadline.passed():
                pass

    @property
    def alive(self) -> bool:
        return bool(self.cloud.boxes)


@pytest.fixture
def world(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[World]:
    caplog.set_level(logging.INFO, "gpurun.keeper")
    made = World(tmp_path)
    with hold(made.places.run_lock("run00001")):  # a driver that does nothing
        yield made
    made.journal.close()


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The keeper signals the lock's holder, which is this process: it must survive."""
    import signal

    from gpurun.signals import TOLD

    heard: list[int] = []
    before = signal.signal(TOLD, lambda number, _frame: heard.append(number))
    yield heard
    signal.signal(TOLD, before)


def test_nothing_is_ended_before_its_time_and_everything_after(world: World) -> None:
    world.rent(minutes=10)
    world.tick(30, apart_s=19)
    assert world.alive
    assert world.journal.runs.get("run00001").ending is None
    world.tick(8, apart_s=15)
    assert not world.alive
    assert world.journal.attempts.get(LABEL).state is AttemptState.GONE
    assert world.journal.runs.get("run00001").state is RunState.DEADLINE


def test_the_driver_is_told_when_the_timer_fires_and_destroyed_for_at_the_end(
    world: World, told: list[int]
) -> None:
    world.rent(minutes=1)
    world.tick(1, apart_s=61)
    assert len(told) == 1
    assert world.alive
    world.tick(1, apart_s=58)
    assert world.alive
    world.tick(1, apart_s=2)
    assert not world.alive


def test_a_step_of_the_wall_clock_neither_fires_nor_delays(world: World) -> None:
    world.rent(minutes=10)
    world.clock._now += timedelta(hours=9)
    world.tick(3)
    assert world.alive
    world.clock._now -= timedelta(hours=33)
    world.tick(40, apart_s=20)
    assert not world.alive


def test_a_timer_is_acknowledged_by_the_next_tick(world: World) -> None:
    world.rent()
    assert not world.journal.timers.acknowledged(LABEL, 1)
    world.tick()
    assert world.journal.timers.acknowledged(LABEL, 1)


def test_a_box_is_ended_by_the_black_box_when_the_journal_is_garbage(world: World) -> None:
    world.rent(minutes=1)
    for suffix in ("", "-wal"):
        path = world.places.database.with_name("gpurun.db" + suffix)
        path.write_bytes(b"\xff" * path.stat().st_size)
    world.tick(2, apart_s=70)
    assert not world.alive


def test_a_provider_that_is_away_is_asked_until_it_answers(world: World) -> None:
    world.rent(minutes=1)
    world.cloud.unreachable = True
    world.tick(20, apart_s=61)
    assert world.alive
    assert world.journal.runs.get("run00001").state is RunState.STILL_BILLING
    world.cloud.unreachable = False
    world.tick(5, apart_s=61)
    assert not world.alive
    assert world.journal.runs.get("run00001").state is RunState.DEADLINE


def test_a_label_that_reappears_is_ended_again(world: World) -> None:
    world.rent(minutes=1)
    box = next(iter(world.cloud.boxes.values()))
    world.tick(6, apart_s=61)
    assert world.journal.attempts.get(LABEL).state is AttemptState.GONE
    world.cloud.boxes[box.id] = box
    world.tick(6, apart_s=61)
    assert not world.alive
    assert world.cloud.destroys.count(box.id) >= 2


def test_a_box_that_ended_elsewhere_ends_its_run_after_three_lists(world: World) -> None:
    world.rent(minutes=60)
    world.tick(1, apart_s=31)
    world.cloud.boxes.clear()
    world.tick(2, apart_s=31)
    assert world.journal.runs.get("run00001").state is RunState.ACTIVE
    world.tick(2, apart_s=31)
    assert world.journal.runs.get("run00001").state is RunState.FAILED
    assert "outside gpurun" in world.journal.runs.get("run00001").error


def test_what_is_not_ours_is_shown_and_never_touched(world: World) -> None:
    world.rent()
    own = next(iter(world.cloud.boxes.values()))
    world.cloud.boxes["7"] = replace(own, id="7", label=LABEL + "x")
    world.tick(10, apart_s=121)
    assert list(world.cloud.boxes) == ["7"]
    assert "7" not in world.cloud.destroys


def test_a_ghost_is_ended_once_it_is_listed(world: World) -> None:
    world.rent()
    world.journal.attempts.get(LABEL)
    world.cloud.list_lag_s = 10**6
    with world.journal.database.write() as session:
        session.connection().exec_driver_sql("UPDATE instances SET state='ghost', instance_id=NULL")
    world.journal.endings.end_run("run00001", Ending.FAILED, "never appeared", 0)
    world.tick(10, apart_s=61)
    assert world.alive
    world.cloud.list_lag_s = 0
    world.tick(6, apart_s=61)
    assert not world.alive


def test_a_ghost_that_never_comes_expires_after_a_day(world: World) -> None:
    world.rent()
    world.cloud.boxes.clear()
    with world.journal.database.write() as session:
        session.connection().exec_driver_sql("UPDATE instances SET state='ghost', instance_id=NULL")
    world.tick(2, apart_s=3600)
    assert world.journal.attempts.get(LABEL).state is AttemptState.GHOST
    world.tick(1, apart_s=86400)
    assert world.journal.attempts.get(LABEL).state is AttemptState.EXPIRED


@pytest.mark.parametrize("damage", ["state = 'garbage'", "fires_at = 'garbage'"])
def test_a_damaged_timer_row_is_enforced_by_the_black_box(world: World, damage: str) -> None:
    world.rent(minutes=1)
    with world.journal.database.write() as session:
        session.connection().exec_driver_sql(f"UPDATE timers SET {damage}")
    world.tick(6, apart_s=61)
    assert not world.alive


def test_one_lock_that_cannot_be_read_keeps_no_timer_waiting(world: World) -> None:
    world.rent(minutes=1)
    lock = world.places.run_lock("run00001")
    lock.unlink()
    lock.mkdir()
    world.tick(6, apart_s=61)
    assert not world.alive


def test_a_database_restored_to_the_intent_buys_nothing_and_ends_the_box(world: World) -> None:
    world.rent(minutes=1)
    with world.journal.database.write() as session:
        session.connection().exec_driver_sql(
            "UPDATE instances SET state='intent', instance_id=NULL, sent_at=NULL"
        )
    merge_blackbox(world.journal, world.blackbox)
    assert "keeper adopt" in world.journal.owner.trouble()
    world.tick(6, apart_s=61)
    assert not world.alive


class Busy(FakeClock):
    """A machine where time passes with everything that is done."""

    costs_s = 0.0

    def boot_s(self) -> float:
        self.advance(self.costs_s)
        return super().boot_s()


def test_many_timers_that_fire_at_once_make_no_tick_long(tmp_path: Path, told: list[int]) -> None:
    """What is to be gone goes in that very tick; the writes for the others take several."""
    world = World(tmp_path, Busy())
    world.rent(minutes=1)
    others = [world.rent_more(number, minutes=2) for number in range(6)]
    locks = [hold(world.places.run_lock(run_id)) for run_id in ["run00001", *others]]
    with ExitStack() as stack:
        for lock in locks:
            stack.enter_context(lock)
        world.tick(1, apart_s=61)
        assert len(told) == 1
        world.clock.costs_s = 0.1
        world.tick(1, apart_s=60)
        assert "101" in world.cloud.destroys
        assert 1 < len(told) < 7
        world.clock.costs_s = 0.0
        world.tick(1)
        assert len(told) == 7
    world.journal.close()


@pytest.mark.parametrize("state", ["armed", "unknown"])
def test_what_the_fuse_could_not_be_told_is_collected_before_it_fires(
    world: World, told: list[int], state: str
) -> None:
    """F30, I9, W1: extended while the box could not be reached."""
    world.rent(minutes=10)
    world.read("fuse", 1, minutes=11)
    world.extend(minutes=30)
    if state == "unknown":
        world.journal.timers.guard(LABEL, "fuse", "unknown")
    world.tick(3, apart_s=180)
    world.tick(1, apart_s=58)
    assert not told
    world.tick(1, apart_s=3)
    assert len(told) == 1
    assert world.alive, "its results come first"
    run = world.journal.runs.get("run00001")
    assert run.ending is Ending.DEADLINE
    assert "its fuse could not be moved to the run timer" in run.reason
    world.tick(1, apart_s=58)
    assert world.alive
    world.tick(1, apart_s=3)
    assert not world.alive, "two minutes before the fuse acts"


def test_a_timer_at_the_provider_that_could_not_be_moved_is_two_minutes_behind_the_end(
    world: World, told: list[int]
) -> None:
    world.rent(minutes=10)
    world.read("provider", 1, minutes=20)
    world.journal.timers.guard(LABEL, "provider", "arming")
    world.extend(minutes=120)
    world.tick(5, apart_s=200)  # 16:40
    assert not told
    world.tick(1, apart_s=25)
    assert len(told) == 1
    world.tick(1, apart_s=61)
    assert not world.alive


@pytest.mark.parametrize(
    ("name", "state", "seq"),
    [
        ("fuse", "armed", 2),
        ("fuse", "disarmed", 1),
        ("provider", "none", 1),
        ("provider", "refused", 1),
    ],
)
def test_a_guard_that_was_moved_or_holds_nothing_brings_no_timer_forward(
    world: World, told: list[int], name: str, state: GuardState, seq: int
) -> None:
    world.rent(minutes=10)
    world.read(name, 1, minutes=11 if name == "fuse" else 13)
    world.extend(minutes=30)
    world.tick(3, apart_s=190)  # the keeper has read that it lags
    if seq == 2:
        world.read(name, 2, minutes=31)
    world.journal.timers.guard(LABEL, name, state)
    world.tick(1, apart_s=31)
    assert not told, "it is read once more before the timer fires"
    world.tick(5, apart_s=200)
    assert not told
    world.tick(1, apart_s=300)
    assert len(told) == 1


def test_a_guard_that_was_to_act_and_did_not_ends_no_run(world: World, told: list[int]) -> None:
    world.rent(minutes=10)
    world.read("fuse", 1, minutes=11)
    world.extend(minutes=30)
    world.tick(2, apart_s=400)  # nobody looked while it could have acted
    world.tick(1, apart_s=10)
    assert not told
    assert world.alive


def test_a_box_whose_timer_nobody_had_time_to_fire_is_ended_at_its_end(
    tmp_path: Path, told: list[int]
) -> None:
    world = World(tmp_path, Busy())
    world.rent(minutes=1)
    with hold(world.places.run_lock("run00001")):
        world.tick(1, apart_s=55)
        world.clock.costs_s = 0.6  # no tick has time to write
        world.tick(3, apart_s=5)
        assert world.alive
        assert not told
        world.clock.costs_s = 0.0
        world.clock.advance(60)
        world.clock.costs_s = 0.6
        world.tick(1)
        assert not world.alive
        assert not told
    world.journal.close()


def test_a_box_that_has_become_dearer_than_its_cap_ends_and_is_collected_from(
    world: World, told: list[int]
) -> None:
    """W10."""
    world.rent(minutes=60)
    with world.journal.database.write() as session:
        session.connection().exec_driver_sql(
            "UPDATE runs SET recipe_json = json_set(recipe_json, '$.budget.max_usd_per_hour', '5')"
        )
    world.tick(4, apart_s=31)  # it has booted
    [(number, box)] = world.cloud.boxes.items()
    world.cloud.boxes[number] = replace(box, usd_per_hour=Decimal(9))
    world.tick(1, apart_s=31)
    assert not told
    world.tick(1)
    assert len(told) == 1
    run = world.journal.runs.get("run00001")
    assert run.reason == (
        "its box cost $3.60/h before, now $9/h, which is over budget.max_usd_per_hour $5"
    )
    assert run.ending is Ending.DEADLINE
    assert world.alive, "its results come first"
    world.tick(1, apart_s=61)
    assert not world.alive
