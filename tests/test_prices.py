"""The deadline follows the money: dearer boxes end sooner, never later; marks are written once."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import Phase, given
from hypothesis import settings as effort
from hypothesis import strategies as st
from sqlmodel import col, select

from gpurun import glance, show
from gpurun.blackbox import BlackBox
from gpurun.budget import ceiling_usd, cost, run_timer
from gpurun.clock import Deadline
from gpurun.keeper.lists import Lists
from gpurun.model import Budget, Ending, Need, Offer, Order, Timer
from gpurun.places import Places
from gpurun.provider import Traits
from gpurun.settings import Settings
from gpurun.store import Journal
from gpurun.store.ledger import Caps
from gpurun.store.periods import PeriodCap
from gpurun.store.tables import EventRow, InstanceRow, RunRow
from gpurun.timers import timer_for
from tests.fakecloud import FakeClock, FakeCloud
from tests.stories import Story, journal_at

TRAITS = Traits(settle_window_s=120, proof_gap_s=20, tail_s=360, fuse_ends_bill=True)
MAX_USD = Decimal(13)  # of the recipe that a story tells of
HOUR = timedelta(hours=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def journal(tmp_path: Path, clock: FakeClock) -> Iterator[Journal]:
    journal = journal_at(tmp_path, clock)
    yield journal
    journal.close()


def setting_up(journal: Journal, clock: FakeClock, reserved_usd: Decimal = Decimal(1)) -> Story:
    """For ten minutes: $3.60 an hour, $13 in all."""
    story = Story(journal, clock).begun()
    attempts, caps = journal.attempts, Caps(MAX_USD)
    attempts.intend(
        story.attempt(), story.timer(1, 10), [("fuse", True)], reserved_usd, caps, story.epoch
    )
    attempts.sending(story.label, story.epoch)
    attempts.made(story.label, "i-1", "answer")
    attempts.seen(story.label, clock.now(), None)
    return story


def training(journal: Journal, clock: FakeClock, run_minutes: float) -> Story:
    """Armed as its money allows."""
    story, caps = setting_up(journal, clock), Caps(MAX_USD)
    journal.timers.guard(story.label, "provider", "armed")
    budget = Budget(Decimal(10), MAX_USD, 600, run_minutes * 60, 300, 600)
    ends = run_timer(clock.now(), budget, story.usd_per_hour, Decimal(0), TRAITS)
    timer = timer_for(story.label, 2, "run", ends.fires_at, ends.ends_at, clock)
    usd = ceiling_usd(story.usd_per_hour, clock.now(), ends, TRAITS)
    journal.timers.arming(timer, story.run_id, story.epoch, usd, caps)
    assert journal.timers.put_in_force(timer)
    return story


def events(journal: Journal, *what: str) -> list[str]:
    query = select(EventRow).where(col(EventRow.what).in_(what)).order_by(col(EventRow.id))
    with journal.database.read() as session:
        return [row.detail for row in session.exec(query)]


def test_a_higher_price_brings_the_timer_to_where_the_money_ends(
    journal: Journal, clock: FakeClock
) -> None:
    story = training(journal, clock, run_minutes=180)
    clock.advance(3600)
    journal.ledger.book(story.label, "train")
    timer = journal.prices.risen(story.label, Decimal("7.20"), TRAITS, ())
    assert timer is not None
    # $9.40 are left: at $7.20 an hour 4700 s, of them 2 minutes of margin and 6 of tail.
    assert timer.ends_at == clock.now() + timedelta(seconds=4700 - 480)
    assert timer.fires_at == timer.ends_at - timedelta(minutes=5)
    assert journal.timers.of(story.label) == timer
    assert (timer.seq, timer.kind) == (3, "run")
    assert {guard.state for guard in journal.timers.guards_of(story.label)} == {"none", "arming"}
    assert journal.attempts.get(story.label).ceiling_at <= timer.ends_at
    assert journal.ledger.committed_usd(story.run_id) <= MAX_USD
    assert events(journal, "dearer") == ["$3.60/h before, now $7.20/h"]
    assert len(events(journal, "shortened")) == 1


def test_a_price_that_the_money_still_pays_moves_no_timer(
    journal: Journal, clock: FakeClock
) -> None:
    story = training(journal, clock, run_minutes=30)
    before = journal.timers.of(story.label)
    reserved = journal.ledger.committed_usd(story.run_id)
    assert journal.prices.risen(story.label, Decimal("7.20"), TRAITS, ()) is None
    assert journal.timers.of(story.label) == before
    assert journal.ledger.committed_usd(story.run_id) == reserved * 2


def test_a_lower_price_changes_nothing(journal: Journal, clock: FakeClock) -> None:
    story = training(journal, clock, run_minutes=180)
    before = journal.timers.of(story.label)
    assert journal.prices.risen(story.label, Decimal("1.80"), TRAITS, ()) is None
    assert journal.timers.of(story.label) == before
    assert events(journal, "dearer") == []


def test_the_caps_of_all_runs_count_too(journal: Journal, clock: FakeClock) -> None:
    story = training(journal, clock, run_minutes=60)
    midnight = clock.now().replace(hour=0)
    cap = PeriodCap("max_usd_per_day", Decimal(6), midnight, midnight + 24 * HOUR)
    timer = journal.prices.risen(story.label, Decimal("7.20"), TRAITS, (cap,))
    assert timer is not None
    assert timer.ends_at == clock.now() + timedelta(seconds=3000 - 480)


def test_a_price_that_leaves_nothing_ends_the_box_now(journal: Journal, clock: FakeClock) -> None:
    story = training(journal, clock, run_minutes=180)
    clock.advance(2 * 3600)
    timer = journal.prices.risen(story.label, Decimal(360), TRAITS, ())
    assert timer is not None
    assert timer.fires_at == timer.ends_at == clock.now()


def capped(journal: Journal, story: Story, usd_per_hour: str) -> None:
    """As its recipe says."""
    with journal.database.write() as session:
        run = session.get_one(RunRow, story.run_id)
        recipe = json.loads(run.recipe_json)
        recipe["budget"]["max_usd_per_hour"] = usd_per_hour
        run.recipe_json = json.dumps(recipe)
        session.add(run)


def test_a_price_over_its_cap_ends_the_run_now_and_collects(
    journal: Journal, clock: FakeClock
) -> None:
    """W10: the money would pay for longer, but this is not what was agreed to."""
    story = training(journal, clock, run_minutes=60)
    capped(journal, story, "5.00")
    assert journal.prices.risen(story.label, Decimal("5.00"), TRAITS, ()) is None
    timer = journal.prices.risen(story.label, Decimal("5.01"), TRAITS, ())
    assert timer is not None
    assert (timer.kind, timer.fires_at) == ("price", clock.now())
    assert timer.ends_at == clock.now() + timedelta(minutes=5)
    assert journal.ledger.committed_usd(story.run_id) < MAX_USD
    assert journal.endings.fire(timer, story.run_id, "the price timer fired", 0.0)
    run = journal.runs.get(story.run_id)
    assert run.ending is Ending.DEADLINE
    assert run.reason == (
        "its box cost $5.00/h before, now $5.01/h, which is over budget.max_usd_per_hour $5.00"
    )


def test_a_price_over_its_cap_that_the_money_does_not_even_collect_for_ends_sooner(
    journal: Journal, clock: FakeClock
) -> None:
    story = training(journal, clock, run_minutes=180)
    capped(journal, story, "5.00")
    timer = journal.prices.risen(story.label, Decimal(72), TRAITS, ())
    assert timer is not None
    assert timer.ends_at == clock.now() + timedelta(seconds=650 - 480)
    assert timer.fires_at == clock.now()


def test_what_is_ending_is_not_shortened(journal: Journal, clock: FakeClock) -> None:
    story = training(journal, clock, run_minutes=180)
    journal.endings.end_run(story.run_id, Ending.KILL, "gpurun kill", 60)
    before = journal.timers.of(story.label)
    assert journal.prices.risen(story.label, Decimal(360), TRAITS, ()) is None
    assert journal.timers.of(story.label) == before
    assert journal.attempts.get(story.label).usd_per_hour == 360


def test_an_older_timer_that_is_being_armed_is_not_put_in_force(
    journal: Journal, clock: FakeClock
) -> None:
    story = training(journal, clock, run_minutes=120)
    later = story.timer(3, 150, "run")
    journal.timers.arming(later, story.run_id, story.epoch, Decimal(10), Caps(MAX_USD))
    shorter = journal.prices.risen(story.label, Decimal("7.20"), TRAITS, ())
    assert shorter is not None
    assert not journal.timers.put_in_force(later)
    assert journal.timers.of(story.label) == shorter


def test_traffic_beyond_what_was_held_is_money_that_pays_no_hour(
    journal: Journal, clock: FakeClock
) -> None:
    story = training(journal, clock, run_minutes=180)
    journal.ledger.hold(story.label, 0, Decimal("0.50"))
    clock.advance(3600)
    before = journal.timers.of(story.label)
    assert journal.prices.moved(story.label, Decimal("0.50"), TRAITS, ()) is None
    assert journal.timers.of(story.label) == before
    timer = journal.prices.moved(story.label, Decimal(4), TRAITS, ())
    assert timer is not None
    # $5.40 are left: at $3.60 an hour 5400 s, of them 2 minutes of margin and 6 of tail.
    assert timer.ends_at == clock.now() + timedelta(seconds=5400 - 480)
    assert timer.fires_at == timer.ends_at - timedelta(minutes=5)
    assert (timer.seq, timer.kind) == (3, "run")
    assert journal.ledger.committed_usd(story.run_id) == MAX_USD
    assert events(journal, "traffic") == ["$4.00 of it so far, $3.50 more than was held"]
    assert journal.prices.moved(story.label, Decimal(4), TRAITS, ()) is None
    assert journal.timers.of(story.label) == timer


def test_traffic_that_the_money_still_pays_is_held_and_moves_no_timer(
    journal: Journal, clock: FakeClock
) -> None:
    story = training(journal, clock, run_minutes=30)
    before, committed = (
        journal.timers.of(story.label),
        journal.ledger.committed_usd(story.run_id),
    )
    assert journal.prices.moved(story.label, Decimal("1.25"), TRAITS, ()) is None
    assert journal.timers.of(story.label) == before
    assert journal.ledger.committed_usd(story.run_id) == committed + Decimal("1.25")


def test_traffic_during_the_setup_takes_from_the_training_what_is_left(
    journal: Journal, clock: FakeClock
) -> None:
    story = setting_up(journal, clock, reserved_usd=MAX_USD)
    before = journal.timers.of(story.label)
    assert journal.prices.moved(story.label, Decimal(9), TRAITS, ()) is None
    assert journal.timers.of(story.label) == before
    assert journal.ledger.committed_usd(story.run_id) == MAX_USD  # $4 stay reserved
    timer = journal.prices.moved(story.label, Decimal("12.90"), TRAITS, ())
    assert timer is not None
    assert (timer.kind, timer.ends_at) == ("setup", clock.now())


def test_the_traffic_of_a_box_that_is_gone_is_left_to_its_bill(
    journal: Journal, clock: FakeClock
) -> None:
    story = training(journal, clock, run_minutes=180)
    story.gone(Ending.DONE)
    committed = journal.ledger.committed_usd(story.run_id)
    assert journal.prices.moved(story.label, Decimal(9), TRAITS, ()) is None
    assert journal.ledger.committed_usd(story.run_id) == committed


@effort(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    st.lists(
        st.tuples(
            st.integers(min_value=0, max_value=90),
            st.decimals(min_value=Decimal("0.01"), max_value=60, places=2),
            st.decimals(min_value=0, max_value=9, places=2),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_no_rise_moves_a_timer_later_and_what_is_left_pays_to_its_end(
    tmp_path_factory: pytest.TempPathFactory, rises: list[tuple[int, Decimal, Decimal]]
) -> None:
    clock = FakeClock()
    journal = journal_at(tmp_path_factory.mktemp("rises"), clock)
    try:
        story = training(journal, clock, run_minutes=180)
        before = journal.timers.of(story.label)
        assert before is not None
        for minutes, rate, traffic_usd in rises:
            clock.advance(60 * minutes)
            if clock.now() >= before.fires_at:
                return
            journal.prices.risen(story.label, rate, TRAITS, ())
            journal.prices.moved(story.label, traffic_usd, TRAITS, ())
            before = _within(journal, clock, story, before)
    finally:
        journal.close()


def _within(journal: Journal, clock: FakeClock, story: Story, before: Timer) -> Timer:
    now = journal.timers.of(story.label)
    assert now is not None
    assert now.ends_at <= before.ends_at
    assert now.fires_at <= before.fires_at
    rate = journal.attempts.get(story.label).usd_per_hour
    journal.ledger.book(story.label, "train")
    left_s = (now.ends_at - clock.now()).total_seconds()
    spent = journal.ledger.committed_usd(story.run_id, but_label=story.label)
    if left_s > 0:  # to the end of the fuse's margin and the tail
        assert spent + cost(rate, left_s + 480) <= MAX_USD + Decimal("0.01")
    return now


@pytest.mark.parametrize(
    ("booked_at", "traffic_usd"), [("0.90", None), ("1.89", "9.001")], ids=["price", "traffic"]
)
def test_a_keeper_that_lists_a_dearer_box_shortens_it_and_writes_the_black_box(
    tmp_path: Path, journal: Journal, clock: FakeClock, booked_at: str, traffic_usd: str | None
) -> None:
    cloud = FakeCloud(clock)
    need = Need("H100", 4, 100)
    offer = Offer("fake", "1", "H100", 4, Decimal("1.89"), 100)
    story = training(journal, clock, run_minutes=180)
    order = Order(offer, need, story.label, clock.now(), clock.now(), Decimal(10))
    made = cloud.create(order).instance_id
    counted = None if traffic_usd is None else Decimal(traffic_usd)
    cloud.boxes[made] = replace(cloud.boxes[made], traffic_usd=counted)
    journal.attempts.made(story.label, made, "answer")
    with journal.database.write() as session:  # the account of this cloud
        row = session.get(InstanceRow, story.label)
        assert row is not None
        row.account_id, row.usd_per_hour = cloud.account(), Decimal(booked_at)
        session.add(row)
    clock.advance(600)
    before = journal.timers.of(story.label)
    blackbox = BlackBox(Places(tmp_path).blackbox, *journal.owner.ensure())
    limits = Settings(max_usd_per_day=Decimal(2))
    lists = Lists(lambda _name: cloud, clock, journal, blackbox, limits)
    lists.step(["local"])
    deadline = Deadline(20)
    while lists.working() and not deadline.passed():
        pass
    after = journal.timers.of(story.label)
    assert before is not None
    assert after is not None
    assert after.ends_at < before.ends_at
    entry = blackbox.read()[story.label]
    assert (entry.seq, entry.usd_per_hour) == (after.seq, Decimal("1.89"))
    held_usd = journal.ledger.committed_usd(story.run_id, but_label=story.label)
    assert held_usd >= (counted or 0)


def test_half_four_fifths_and_nearly_all_of_the_money_are_an_event_each_once(
    journal: Journal, clock: FakeClock
) -> None:
    story = training(journal, clock, run_minutes=180)  # $13 last 3 h 36 m
    marks = ("50%", "80%", "95%")
    for hours, known in ((1.8, 0), (0.1, 1), (0.1, 1), (1, 2), (0.45, 3), (0.1, 3)):
        clock.advance(hours * 3600)
        journal.ledger.book(story.label, "train")
        journal.ledger.book(story.label, "train")
        assert len(events(journal, *marks)) == known
    assert events(journal, "50%") == ["$6.84 of budget.max_usd $13.00 are spent"]


@pytest.mark.parametrize(("hours", "passed"), [(1.7, None), (1.85, 50), (2.95, 80), (3.5, 95)])
def test_status_says_which_part_of_its_money_a_run_has_spent(
    tmp_path: Path, journal: Journal, clock: FakeClock, hours: float, passed: int | None
) -> None:
    story = training(journal, clock, run_minutes=240)
    clock.advance(hours * 3600)
    text = show.status_text(glance.status(tmp_path, clock.now()), show.Look())
    said = re.findall(rf"{story.run_id}: (\d+) % of its money is spent, \$[\d.]+ of \$13", text)
    assert said == ([] if passed is None else [str(passed)])
