"""Vast's scheduler as a guard of the engine's: armed, read back, moved, never early, cleaned up."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpurun import web
from gpurun.errors import PhaseFailed
from gpurun.guards import AtProvider, at_provider, disarm_all
from gpurun.keeper.obligations import LOOK_EVERY_S, READ_EVERY, Obligations
from gpurun.model import Timer
from gpurun.provider import ProviderTimer
from gpurun.store.ledger import Caps
from gpurun.store.timers import GuardWord
from provisioners.vast import Vast
from tests.clouds.serve import Cloud
from tests.fakecloud import FakeClock
from tests.provisioners.vast.conftest import START, adapter
from tests.provisioners.vast.test_timer import hours
from tests.provisioners.vast.test_vast import order
from tests.stories import Story, journal_at

SETUP_E = START + timedelta(minutes=31)  # 12:51, so 13:00
RUN_E = START + timedelta(hours=3)  # 15:20, so 16:00


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def vast(market: Cloud, clock: FakeClock) -> Vast:
    return adapter(market, clock)


@pytest.fixture
def story(market: Cloud, vast: Vast, clock: FakeClock, tmp_path: Path) -> Story:
    """A box at Vast, seen, under a setup timer that ends at 12:51."""
    told = Story(journal_at(tmp_path, clock), clock, provider="vast").rented(minutes=30)
    told.journal.attempts.made(told.label, vast.create(order(vast)).instance_id, "answer")
    market.advance(1)
    return told


@pytest.fixture
def guard(story: Story, vast: Vast) -> AtProvider:
    found = at_provider(vast, story.journal.attempts.get(story.label), story.journal)
    assert found is not None
    return found


def setup_timer(story: Story) -> Timer:
    timer = story.journal.timers.of(story.label)
    assert timer is not None
    assert timer.ends_at == SETUP_E
    return timer


def run_timer(story: Story) -> Timer:
    return replace(setup_timer(story), seq=2, kind="run", ends_at=RUN_E)


def known(story: Story) -> GuardWord:
    return next(w for w in story.journal.timers.guards_of(story.label) if w.name == "provider")


def test_it_is_a_guard_once_it_was_read_back(story: Story, guard: AtProvider) -> None:
    assert guard.arm(setup_timer(story)) == ""
    word = known(story)
    assert (word.state, word.seq_read) == ("armed", 1)
    assert word.ends_at_read == datetime(2026, 11, 21, 13, tzinfo=UTC)


def test_what_the_account_may_not_is_refused_and_what_was_not_answered_is_tried_again(
    market: Cloud, story: Story, guard: AtProvider
) -> None:
    market.fault("schedule_refused")
    assert "cannot be scheduled" in guard.arm(setup_timer(story))
    assert known(story).state == "refused"
    market.clear()
    market.fault("server_error", endpoint="schedules")
    assert guard.arm(setup_timer(story))
    assert known(story).state == "arming"


def test_training_is_not_launched_under_the_hour_of_the_setup(
    market: Cloud, story: Story, guard: AtProvider
) -> None:
    """F28: it cannot be moved; it can be removed; when neither, nothing is launched."""
    guard.arm(setup_timer(story))
    guard.require(setup_timer(story))
    guard.require(run_timer(story))
    assert hours(market) == []
    assert known(story).state == "none"
    guard.arm(setup_timer(story))
    market.fault("server_error", endpoint="schedules")
    with pytest.raises(PhaseFailed, match="not launched"):
        guard.require(run_timer(story))


def test_one_that_could_not_be_moved_is_known_to_hold_the_older_hour(
    market: Cloud, story: Story, guard: AtProvider
) -> None:
    guard.arm(setup_timer(story))
    guard.read(run_timer(story))
    assert (known(story).state, known(story).seq_read) == ("armed", 1)
    guard.arm(run_timer(story))
    assert (known(story).seq_read, hours(market)) == (2, ["16:00:01"])


def test_just_before_it_fires_it_is_too_late_to_extend(story: Story, guard: AtProvider) -> None:
    """F27."""
    timer = setup_timer(story)
    guard.arm(timer)
    fires_at = datetime(2026, 11, 21, 13, tzinfo=UTC)
    assert guard.fires_too_soon(timer, fires_at - timedelta(minutes=4)) is None
    assert guard.fires_too_soon(timer, fires_at - timedelta(minutes=2)) == fires_at


def owed(story: Story, vast: Vast, clock: FakeClock) -> Obligations:
    return Obligations(lambda _name: vast, clock, story.journal)


def settle(obligations: Obligations, clock: FakeClock, seconds: float = LOOK_EVERY_S) -> None:
    """Steps, a tick after the other, until what one of them began is done."""
    for _ in range(4):
        clock.advance(seconds)
        obligations.step()
        while obligations.working():
            pass


def test_the_keeper_finishes_what_a_driver_began_and_reads_it_again(
    market: Cloud, story: Story, vast: Vast, clock: FakeClock
) -> None:
    story.journal.timers.guard(story.label, "provider", "arming")
    keeper = owed(story, vast, clock)
    settle(keeper, clock)
    assert (known(story).state, hours(market)) == ("armed", ["13:00:01"])
    before = known(story).read_back_at
    assert before is not None
    settle(keeper, clock, READ_EVERY.total_seconds() / 2)
    after = known(story).read_back_at
    assert after is not None
    assert after - before >= READ_EVERY


def test_the_keeper_sees_that_it_is_gone_and_puts_it_back(
    market: Cloud, story: Story, guard: AtProvider, vast: Vast, clock: FakeClock
) -> None:
    guard.arm(setup_timer(story))
    market.world.jobs.clear()
    keeper = owed(story, vast, clock)
    settle(keeper, clock, READ_EVERY.total_seconds() / 2)
    settle(keeper, clock)
    assert (known(story).state, hours(market)) == ("armed", ["13:00:01"])


def test_the_keeper_finishes_a_move_for_the_newest_timer(
    market: Cloud, story: Story, guard: AtProvider, vast: Vast, clock: FakeClock
) -> None:
    """Killed between the DELETE and the POST of ARM: the newest is paid for."""
    guard.arm(setup_timer(story))
    caps = Caps(story.attempt().usd_per_hour * 10)
    timers = story.journal.timers
    timers.arming(run_timer(story), story.run_id, story.epoch, caps.run_usd / 2, caps)
    guard.disarm()
    timers.guard(story.label, "provider", "arming")
    settle(owed(story, vast, clock), clock)
    assert (known(story).seq_read, hours(market)) == (2, ["16:00:01"])


def test_it_is_removed_with_its_box_and_by_the_keeper_if_vast_did_not_answer(
    market: Cloud, story: Story, guard: AtProvider, vast: Vast, clock: FakeClock
) -> None:
    guard.arm(setup_timer(story))
    attempt = story.gone().journal.attempts.get(story.label)
    market.fault("server_error", endpoint="schedules")
    assert disarm_all(vast, attempt, story.journal, clock)
    assert known(story).state == "disarm_due"
    market.clear()
    settle(owed(story, vast, clock), clock)
    assert (known(story).state, hours(market)) == ("disarmed", [])


def test_a_box_that_is_ending_gets_no_new_timer(
    market: Cloud, story: Story, vast: Vast, clock: FakeClock
) -> None:
    story.journal.timers.guard(story.label, "provider", "arming")
    story.journal.attempts.deleting(story.label)
    settle(owed(story, vast, clock), clock)
    assert hours(market) == []


def test_one_that_holds_an_older_timer_is_moved_when_that_is_read(
    market: Cloud, story: Story, guard: AtProvider, vast: Vast, clock: FakeClock
) -> None:
    guard.arm(setup_timer(story))
    caps = Caps(story.attempt().usd_per_hour * 10)
    timers = story.journal.timers
    timers.arming(run_timer(story), story.run_id, story.epoch, caps.run_usd / 2, caps)
    guard.read(run_timer(story))
    assert (known(story).state, known(story).seq_read) == ("armed", 1)
    settle(owed(story, vast, clock), clock, READ_EVERY.total_seconds() / 2)
    assert (known(story).seq_read, hours(market)) == (2, ["16:00:01"])


def test_the_list_of_timers_is_read_once_for_all_boxes(
    market: Cloud, story: Story, guard: AtProvider, clock: FakeClock
) -> None:
    class Counted(Vast):
        lists = 0

        def provider_timers(self) -> dict[str, ProviderTimer]:
            self.lists += 1
            return super().provider_timers()

        def provider_timer(self, instance_id: str) -> ProviderTimer | None:
            raise AssertionError("a list for each box")

    http = web.client("vast", market.url, market.api_key, (), clock)
    vast, boxes = Counted(http, clock), [story]
    guard.arm(setup_timer(story))
    for number in (2, 3):
        more = Story(story.journal, clock, f"run0000{number}", provider="vast").rented(minutes=30)
        made = vast.create(order(vast)).instance_id
        more.journal.attempts.made(more.label, made, "answer")
        market.advance(1)
        at = at_provider(vast, more.journal.attempts.get(more.label), more.journal)
        assert at is not None
        assert at.arm(setup_timer(more)) == ""
        boxes.append(more)
    settle(owed(story, vast, clock), clock, READ_EVERY.total_seconds() / 2)
    assert vast.lists == 1
    assert [(known(each).state, known(each).seq_read) for each in boxes] == [("armed", 1)] * 3
    ages = {clock.now() - (known(each).read_back_at or START) for each in boxes}
    assert max(ages) < READ_EVERY
