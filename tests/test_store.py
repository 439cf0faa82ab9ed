"""The journal: orders as transactions, the fence, the ledger, the deadlines of an ending."""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from gpurun.errors import UsageError
from gpurun.model import Attempt, AttemptState, Ending, RunState, Timer
from gpurun.store import Fenced, Journal, OverCap, StoreError
from gpurun.store.armed import armed
from gpurun.store.ledger import Caps
from gpurun.timers import timer_for
from tests.fakecloud import FakeClock
from tests.stories import Story

RATE = Decimal("3.60")
LABEL = "gpurun-owner1-run00001-nonce1"
CAPS = Caps(run_usd=Decimal("10"))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def journal(tmp_path: Path, clock: FakeClock) -> Iterator[Journal]:
    journal = Journal(tmp_path / "gpurun.db", clock)
    journal.database.migrate()
    journal.owner.ensure()
    journal.runs.add(Story(journal, clock).run())
    yield journal
    journal.close()


def attempt(clock: FakeClock, journal: Journal, label: str = LABEL) -> Attempt:
    return replace(Story(journal, clock).attempt(), label=label)


def in_force(journal: Journal) -> list[Timer]:
    return [timer for _, timer in armed(journal.database)]


def timer(clock: FakeClock, seq: int = 1, minutes: float = 10, label: str = LABEL) -> Timer:
    fires_at = clock.now() + timedelta(minutes=minutes)
    return timer_for(label, seq, "setup", fires_at, fires_at + timedelta(minutes=1), clock)


def rented(journal: Journal, clock: FakeClock, usd: str = "1") -> int:
    epoch = journal.runs.take("run00001")
    journal.attempts.intend(
        attempt(clock, journal), timer(clock), [("keeper", True)], Decimal(usd), CAPS, epoch
    )
    journal.attempts.sending(LABEL, epoch)
    journal.attempts.made(LABEL, "i-1", "answer")
    journal.attempts.seen(LABEL, clock.now(), None)
    return epoch


def test_the_database_and_its_directory_are_closed_to_others(journal: Journal) -> None:
    assert journal.database.path.stat().st_mode & 0o777 == 0o600


def test_a_new_driver_fences_the_old_one_out(journal: Journal, clock: FakeClock) -> None:
    old = journal.runs.take("run00001")
    journal.runs.take("run00001")
    with pytest.raises(Fenced):
        journal.attempts.intend(attempt(clock, journal), timer(clock), [], Decimal(1), CAPS, old)
    assert journal.attempts.live() == []


def test_nothing_is_sent_once_the_run_is_ending(journal: Journal, clock: FakeClock) -> None:
    epoch = journal.runs.take("run00001")
    journal.attempts.intend(attempt(clock, journal), timer(clock), [], Decimal(1), CAPS, epoch)
    journal.endings.end_run("run00001", Ending.KILL, "gpurun kill", 0)
    with pytest.raises(Fenced):
        journal.attempts.sending(LABEL, epoch)


def test_an_id_is_recorded_even_by_a_driver_that_lost_its_run(
    journal: Journal, clock: FakeClock
) -> None:
    epoch = journal.runs.take("run00001")
    journal.attempts.intend(attempt(clock, journal), timer(clock), [], Decimal(1), CAPS, epoch)
    journal.attempts.sending(LABEL, epoch)
    journal.runs.take("run00001")
    journal.endings.end_run("run00001", Ending.KILL, "gpurun kill", 0)
    journal.attempts.made(LABEL, "i-1", "answer")
    assert journal.attempts.get(LABEL).instance_id == "i-1"


def test_a_label_is_intended_once(journal: Journal, clock: FakeClock) -> None:
    rented(journal, clock)
    with pytest.raises(StoreError, match="UNIQUE"):
        journal.attempts.intend(attempt(clock, journal), timer(clock), [], Decimal(1), CAPS, 1)


def test_the_ending_is_set_once(journal: Journal, clock: FakeClock) -> None:
    rented(journal, clock)
    journal.endings.end_run("run00001", Ending.FAILED, "first", 0)
    journal.endings.end_run("run00001", Ending.KILL, "second", 0)
    assert journal.runs.get("run00001").ending is Ending.FAILED
    assert journal.runs.get("run00001").reason == "first"


def test_an_ending_only_ever_brings_the_deadline_nearer(journal: Journal, clock: FakeClock) -> None:
    rented(journal, clock)
    ends_at = in_force(journal)[0].ends_at
    journal.endings.end_run("run00001", Ending.FAILED, "x", grace_s=10**6)
    assert in_force(journal)[0].ends_at == ends_at


def test_a_deadline_seen_too_late_is_moved_once(journal: Journal, clock: FakeClock) -> None:
    rented(journal, clock)
    clock.advance(3600)
    journal.endings.end_run("run00001", Ending.DEADLINE, "x", 10**6, late_collect_s=120)
    moved = in_force(journal)[0].ends_at
    assert moved == clock.now() + timedelta(seconds=120)
    clock.advance(60)
    journal.endings.end_run("run00001", Ending.DEADLINE, "x", 10**6, late_collect_s=120)
    assert in_force(journal)[0].ends_at == moved


def test_a_deadline_missed_by_seconds_is_not_moved_by_minutes(
    journal: Journal, clock: FakeClock
) -> None:
    rented(journal, clock)
    [timer] = in_force(journal)
    clock.advance((timer.ends_at - clock.now()).total_seconds() + 4)
    journal.endings.end_run("run00001", Ending.DEADLINE, "x", 10**6, late_collect_s=120)
    missed = clock.now() - timer.fires_at
    assert in_force(journal)[0].ends_at == clock.now() + min(missed, timedelta(seconds=120))
    assert missed < timedelta(seconds=120)


def test_no_collect_hurries_a_run_that_is_already_ending(
    journal: Journal, clock: FakeClock
) -> None:
    rented(journal, clock)
    journal.endings.end_run("run00001", Ending.KILL, "x", grace_s=300)
    journal.endings.hurry("run00001")
    assert in_force(journal)[0].ends_at == clock.now()


def test_a_timer_fires_for_one_caller(journal: Journal, clock: FakeClock) -> None:
    rented(journal, clock)
    due = in_force(journal)[0]
    fired = [journal.endings.fire(due, "run00001", "due", 0) for _ in range(2)]
    assert [timers is None for timers in fired] == [False, True]


def test_a_fired_timer_is_not_replaced_by_arming(journal: Journal, clock: FakeClock) -> None:
    epoch = rented(journal, clock)
    second = replace(timer(clock, seq=2), kind="run")
    journal.timers.arming(second, "run00001", epoch, Decimal(1), CAPS)
    journal.endings.fire(in_force(journal)[0], "run00001", "due", 0)
    assert journal.timers.put_in_force(second) is False
    assert [t.kind for t in in_force(journal)] == ["ending"]


def test_while_a_timer_is_arming_the_old_one_is_in_force(
    journal: Journal, clock: FakeClock
) -> None:
    epoch = rented(journal, clock)
    second = timer(clock, seq=2)
    journal.timers.arming(second, "run00001", epoch, Decimal(1), CAPS)
    assert [t.seq for t in in_force(journal)] == [1]
    assert journal.timers.put_in_force(second)
    assert [t.seq for t in in_force(journal)] == [2]


def test_a_timer_counts_as_acknowledged_only_by_the_keeper(
    journal: Journal, clock: FakeClock
) -> None:
    rented(journal, clock)
    assert not journal.timers.acknowledged(LABEL, 1)
    journal.timers.acknowledge()
    assert journal.timers.acknowledged(LABEL, 1)


def test_the_ledger_cannot_be_changed_or_cut(journal: Journal, clock: FakeClock) -> None:
    rented(journal, clock)
    for forbidden in ("UPDATE ledger SET usd = '0'", "DELETE FROM ledger"):
        with (
            sqlite3.connect(journal.database.path) as raw,
            pytest.raises(sqlite3.IntegrityError, match="append-only"),
        ):
            raw.execute(forbidden)


def test_no_reservation_passes_the_budget_of_the_run(journal: Journal, clock: FakeClock) -> None:
    with pytest.raises(OverCap, match=r"\$10\.00"):
        rented(journal, clock, usd="10.01")
    assert journal.attempts.live() == []


def test_a_reservation_is_free_again_once_nothing_was_made(
    journal: Journal, clock: FakeClock
) -> None:
    epoch = journal.runs.take("run00001")
    journal.attempts.intend(attempt(clock, journal), timer(clock), [], Decimal(9), CAPS, epoch)
    journal.attempts.refused(LABEL, "sold")
    other = LABEL + "x"
    journal.attempts.intend(
        attempt(clock, journal, other), timer(clock, label=other), [], Decimal(9), CAPS, epoch
    )
    assert [a.label for a in journal.attempts.live()] == [other]


def test_every_second_is_booked_once_whoever_books(journal: Journal, clock: FakeClock) -> None:
    rented(journal, clock)
    clock.advance(600)
    journal.ledger.book(LABEL, "setup")
    journal.ledger.book(LABEL, "setup")
    clock.advance(400)
    journal.ledger.book(LABEL, "train")
    booked = {row.phase: row.usd for row in journal.ledger.rows("run00001")}
    assert booked == {
        "setup": Decimal("0.6"),
        "train": Decimal("0.4"),
    }


def test_nothing_is_booked_after_the_box_is_gone(journal: Journal, clock: FakeClock) -> None:
    rented(journal, clock)
    clock.advance(1000)
    journal.attempts.gone(LABEL, "{}")
    clock.advance(1000)
    journal.ledger.book(LABEL, "destroy")
    assert journal.ledger.spent_usd("run00001") == Decimal("1")


def test_a_label_that_reappears_bills_again(journal: Journal, clock: FakeClock) -> None:
    rented(journal, clock)
    journal.attempts.gone(LABEL, "{}")
    assert journal.attempts.live() == []
    journal.attempts.reappeared(LABEL)
    assert journal.attempts.get(LABEL).state is AttemptState.DELETING


def test_a_run_once_finished_stays_as_it_is(journal: Journal, clock: FakeClock) -> None:
    journal.runs.finish("run00001", RunState.DONE, 0)
    journal.runs.finish("run00001", RunState.FAILED, 5)
    assert journal.runs.get("run00001").state is RunState.DONE


def test_still_billing_can_still_be_finished(journal: Journal, clock: FakeClock) -> None:
    journal.runs.finish("run00001", RunState.STILL_BILLING, 10)
    journal.runs.finish("run00001", RunState.DONE, 0)
    assert journal.runs.get("run00001").state is RunState.DONE


def test_an_unknown_run_is_named_with_the_next_command(journal: Journal) -> None:
    with pytest.raises(UsageError, match="gpurun status --all"):
        journal.runs.get("nope")


def test_a_journal_of_another_machine_buys_nothing_until_adopted(journal: Journal) -> None:
    with sqlite3.connect(journal.database.path) as raw:
        raw.execute("UPDATE owner SET machine = 'elsewhere'")
    assert "keeper adopt" in journal.owner.trouble()
    before = journal.owner.ensure()[0]
    assert journal.owner.adopt() != before
    assert journal.owner.trouble() == ""


def test_what_is_said_of_time_is_exact_to_the_microsecond(
    journal: Journal, clock: FakeClock
) -> None:
    clock.advance(0.123456)
    rented(journal, clock)
    assert journal.attempts.get(LABEL).sent_at == clock.now()
