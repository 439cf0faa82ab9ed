"""This machine has restarted: no box is ended early because its clock is wrong, and none late.

The keeper of the new boot is a real one, over a real journal, at an emulated cloud whose answers
bear its time; what is alive is told by the cloud's own books.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gpurun.blackbox import KILLING, BlackBox
from gpurun.clock import ANSWERS_APART_S, Deadline, SystemClock
from gpurun.keeper.daemon import Keeper
from gpurun.keeper.merge import merge_blackbox
from gpurun.locks import hold
from gpurun.model import Ending
from gpurun.places import Places
from gpurun.settings import Settings
from gpurun.signals import TOLD
from gpurun.store import Journal
from gpurun.store.owner import machine_hash
from gpurun.timers import entry_of
from tests.billed import START, Life, adapter, life

HOURS_9_S = 9 * 3600.0
T_S, E_S = 40 * 60, 41 * 60  # of the timer that a life is rented under
FEW_S = 5  # an answer and the tick after it


@pytest.fixture(params=["vast", "prime"])
def lived(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Life]:
    """A box that was rented ten minutes ago, by a right clock."""
    with rented(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def at_vast(tmp_path: Path) -> Iterator[Life]:
    with rented("vast", tmp_path) as made:
        yield made


@contextmanager
def rented(provider: str, home: Path) -> Iterator[Life]:
    before = signal.signal(TOLD, lambda _number, _frame: None)  # the driver's lock is ours
    try:
        with life(provider, home) as made, hold(Places(home).run_lock(made.story.run_id)):
            made.rent()
            made.passes(600)
            made.seen()
            yield made
    finally:
        signal.signal(TOLD, before)


class Booted(SystemClock):
    """The clock of a machine that has just started; time passes when it is told to."""

    def __init__(self, wall: datetime) -> None:
        self.passed_s = 5.0
        super().__init__()
        self.boot_id = "the next boot"
        self._offset_s = wall.timestamp() - self.passed_s

    def boot_s(self) -> float:
        return self.passed_s


@dataclass
class Restarted:
    """The keeper after the restart."""

    lived: Life
    clock: Booted
    journal: Journal
    keeper: Keeper

    def ticks(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.passed_s += 1
            self.lived.market.advance(1)
            self.keeper.tick()
            deadline = Deadline(60, poll_s=0.005)
            while self.keeper.working():
                assert not deadline.passed()

    def sleeps(self, seconds: float) -> None:
        self.clock.passed_s += seconds
        self.lived.market.advance(seconds)

    @property
    def alive(self) -> bool:
        return any(line.alive for line in self.lived.market.meter().instances)

    @property
    def ending(self) -> Ending | None:
        return self.journal.runs.get(self.lived.story.run_id).ending

    def until(self, since_rent_s: float) -> float:
        """How many seconds are left until then, by the cloud."""
        return since_rent_s - (self.lived.market.world.now - START).total_seconds()


def restarted(lived: Life, wall_ahead_s: float, off_for_s: float = 60) -> Restarted:
    """After the machine was off for so long; its wall clock is so far ahead then."""
    lived.passes(off_for_s)
    clock = Booted(lived.clock.now() + timedelta(seconds=wall_ahead_s))
    places = Places(lived.home)
    journal = Journal(places.database, clock)
    owner_id, _machine = lived.story.journal.owner.ensure()
    blackbox = BlackBox(places.blackbox, owner_id, machine_hash())
    attempt = lived.story.journal.attempts.get(lived.label)
    timer = lived.story.journal.timers.of(lived.label)
    assert timer is not None
    blackbox.append(entry_of(attempt, timer, "seen"))
    cloud = adapter(lived.market, clock)
    settings = Settings.model_construct()
    keeper = Keeper(places, settings, clock, journal, blackbox, lambda _name: cloud)
    return Restarted(lived, clock, journal, keeper)


def spoil(after: Restarted) -> None:
    """The black box is all that is left to go by."""
    for suffix in ("", "-wal"):
        path = Places(after.lived.home).database.with_name("gpurun.db" + suffix)
        if path.exists():
            path.write_bytes(b"\xff" * path.stat().st_size)


@pytest.mark.parametrize("wall_ahead_s", [HOURS_9_S, -HOURS_9_S, 0.0])
def test_a_box_lives_until_its_end_and_no_longer(lived: Life, wall_ahead_s: float) -> None:
    after = restarted(lived, wall_ahead_s)
    after.ticks(2 * int(ANSWERS_APART_S) + FEW_S)
    assert after.alive and after.ending is None
    assert after.clock.sure
    after.sleeps(after.until(T_S) - FEW_S)
    after.ticks(FEW_S - 2)
    assert after.alive and after.ending is None
    after.ticks(FEW_S)
    assert after.alive and after.ending is Ending.DEADLINE, "its results are fetched now"
    after.sleeps(after.until(E_S) - FEW_S)
    after.ticks(FEW_S - 2)
    assert after.alive
    after.ticks(FEW_S)
    assert not after.alive


@pytest.mark.parametrize("wall_ahead_s", [HOURS_9_S, -HOURS_9_S, 0.0])
def test_it_does_so_by_the_black_box_alone(lived: Life, wall_ahead_s: float) -> None:
    after = restarted(lived, wall_ahead_s)
    spoil(after)
    after.ticks(2 * int(ANSWERS_APART_S) + FEW_S)
    assert after.alive
    after.sleeps(after.until(E_S) - FEW_S)
    after.ticks(FEW_S - 2)
    assert after.alive
    after.ticks(FEW_S)
    assert not after.alive


@pytest.mark.parametrize("left", ["journal", "black box"])
@pytest.mark.parametrize(
    ("wall_ahead_s", "within_s"),
    [(0.0, FEW_S), (HOURS_9_S, FEW_S), (-HOURS_9_S, ANSWERS_APART_S + FEW_S)],
)
def test_what_was_due_while_the_machine_was_off_is_ended_by_the_first_answer(
    at_vast: Life, left: str, wall_ahead_s: float, within_s: float
) -> None:
    """By the second one where the clock is behind: two are needed to say that it is wrong."""
    after = restarted(at_vast, wall_ahead_s, off_for_s=E_S)
    if left == "black box":
        spoil(after)
    after.ticks(int(within_s))
    assert not after.alive


def test_what_falls_due_while_the_time_is_in_doubt_is_given_its_time_to_collect(
    at_vast: Life,
) -> None:
    """T is past, E is not: nine hours ahead nothing would be left of the minute in between."""
    after = restarted(at_vast, HOURS_9_S, off_for_s=T_S - 600 - 2)
    after.ticks(5)
    assert after.ending is None
    after.ticks(int(ANSWERS_APART_S))
    assert after.alive and after.ending is Ending.DEADLINE
    after.ticks(int(after.until(E_S)) - 2)
    assert after.alive
    after.ticks(FEW_S)
    assert not after.alive


@pytest.mark.parametrize("left", ["journal", "black box"])
def test_while_the_provider_does_not_answer_nothing_is_said_to_end(
    at_vast: Life, left: str
) -> None:
    after = restarted(at_vast, HOURS_9_S)
    at_vast.market.fault("down")
    if left == "black box":
        spoil(after)
    after.ticks(30)
    assert left == "black box" or after.ending is None
    at_vast.market.clear("down")
    after.ticks(30)
    assert after.alive
    assert after.clock.sure


def test_the_time_of_another_run_of_this_boot_confirms_nothing(at_vast: Life) -> None:
    """One on this machine, begun by the wrong clock, whose time a second keeper takes over."""
    after = restarted(at_vast, HOURS_9_S)
    after.clock.set(after.clock.now().timestamp() - after.clock.boot_s())
    at_vast.market.fault("down")
    after.ticks(FEW_S)
    at_vast.market.clear("down")
    after.ticks(2 * int(ANSWERS_APART_S) + FEW_S)
    assert after.alive and after.ending is None


def test_a_provider_that_tells_no_time_leaves_the_clock_that_there_is(at_vast: Life) -> None:
    after = restarted(at_vast, HOURS_9_S)
    at_vast.market.fault("stale_date", age_s=600)
    after.ticks(FEW_S)
    assert not after.alive


def test_a_restored_timer_is_not_held_by_a_clock_that_may_be_wrong(at_vast: Life) -> None:
    """The black box has the timer of two hours, the database is of before that."""
    journal = at_vast.story.journal
    timer = journal.timers.of(at_vast.label)
    assert timer is not None
    later = timedelta(hours=2)
    after = restarted(at_vast, HOURS_9_S)
    moved = replace(timer, seq=2, fires_at=timer.fires_at + later, ends_at=timer.ends_at + later)
    attempt = journal.attempts.get(at_vast.label)
    after.keeper.blackbox.append(entry_of(attempt, moved, "seen"))
    merge_blackbox(after.journal, after.keeper.blackbox)
    after.ticks(2 * int(ANSWERS_APART_S) + FEW_S)
    after.sleeps(after.until(E_S) + 60)
    after.ticks(FEW_S)
    assert after.alive and after.ending is None
    after.sleeps(after.until(E_S) + later.total_seconds())
    after.ticks(FEW_S)
    assert not after.alive


def test_whoever_drives_after_the_restart_has_the_time_that_was_agreed(at_vast: Life) -> None:
    """The timer is held by the boot clock again, from which others take the time of day."""
    after = restarted(at_vast, HOURS_9_S)
    timer = after.journal.timers.of(at_vast.label)
    assert timer is not None and timer.boot_id != after.clock.boot_id
    after.ticks(2 * int(ANSWERS_APART_S) + FEW_S)
    held = after.journal.timers.of(at_vast.label)
    assert held is not None and held.boot_id == after.clock.boot_id
    assert (held.fires_at, held.ends_at) == (timer.fires_at, timer.ends_at)
    assert abs(held.ends_boot_s - after.clock.boot_s() - after.until(E_S)) < 2


def test_what_a_person_has_ended_waits_for_no_answer(at_vast: Life) -> None:
    """It is in the black box alone: written by a clock that was nine hours ahead of this one."""
    after = restarted(at_vast, -HOURS_9_S)
    spoil(after)
    [entry] = after.keeper.blackbox.read().values()
    ended_at = entry.ends_at + timedelta(days=1)
    at_vast.market.fault("stale_date", age_s=600)
    after.keeper.blackbox.append(replace(entry, state=KILLING, fires_at=ended_at, ends_at=ended_at))
    after.ticks(2)
    assert not after.alive
