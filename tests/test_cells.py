"""What is put right of a damaged row, and what is not: by each state that its box can be in.

The other cells of the row, of its timers and events decide; the black box tells numbers alone.
"""

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from gpurun.blackbox import Entry
from gpurun.model import WORDS, AttemptState, Ending, Timer
from gpurun.store import Journal, cells
from gpurun.store.cells import damaged
from gpurun.store.database import HEAD
from gpurun.store.ledger import Caps
from gpurun.timers import entry_of
from tests.fakecloud import FakeClock
from tests.stories import Story, journal_at

CAPS = Caps(run_usd=Decimal(13))


@pytest.fixture
def story(tmp_path: Path) -> Story:
    clock = FakeClock()
    return Story(journal_at(tmp_path, clock), clock)


def damage(story: Story, cell: str, seq: int | None = None) -> None:
    with sqlite3.connect(story.journal.database.path) as other:
        where, values = "label = ?", [story.label]
        if seq is not None:
            where += f" AND seq = {seq}"
        other.execute(f"UPDATE {cell} WHERE {where}", values)
    other.close()


def entry(story: Story, timer: Timer | None = None, state: str = "seen") -> Entry:
    attempt = replace(story.attempt(), instance_id="i-1")
    return entry_of(attempt, timer or story.timer(1, 10), state)


def put_right(story: Story, known: Entry | None) -> bool:
    """All that can be; whether nothing is left."""
    left = cells.put_right(
        story.journal.database, lambda: {story.label: known} if known else {}, story.clock
    )
    assert left == damaged(story.journal.database)
    return not left


def sent(story: Story) -> Story:
    story.begun()
    attempts = story.journal.attempts
    attempts.intend(story.attempt(), story.timer(1, 10), [], Decimal(1), CAPS, story.epoch)
    attempts.sending(story.label, story.epoch)
    return story


def intended(story: Story) -> None:
    story.begun()
    attempts = story.journal.attempts
    attempts.intend(story.attempt(), story.timer(1, 10), [], Decimal(1), CAPS, story.epoch)


def refused(story: Story) -> None:
    sent(story).journal.attempts.refused(story.label, "no room")


def ghost(story: Story) -> None:
    sent(story).journal.attempts.unclear(story.label, "no answer")
    story.journal.attempts.ghost(story.label)


def expired(story: Story) -> None:
    ghost(story)
    story.journal.attempts.expired(story.label)


def made(story: Story) -> None:
    sent(story).journal.attempts.made(story.label, "i-1", "answer")


def seen(story: Story) -> None:
    story.rented()


def deleting(story: Story) -> None:
    story.rented()
    story.journal.endings.end_run(story.run_id, Ending.DEADLINE, "its time is over", 60.0)
    story.journal.attempts.deleting(story.label)


def gone(story: Story) -> None:
    story.rented().gone()


def reappeared(story: Story) -> None:
    gone(story)
    story.journal.attempts.reappeared(story.label)


@pytest.mark.parametrize("said", ["seen", "deleting", "gone", "killing"])
@pytest.mark.parametrize(
    ("happened", "state"),
    [
        (refused, AttemptState.REFUSED),
        (ghost, AttemptState.GHOST),
        (expired, AttemptState.EXPIRED),
        (sent, AttemptState.UNCLEAR),
        (made, AttemptState.MADE),
        (seen, AttemptState.SEEN),
        (deleting, AttemptState.SEEN),
        (gone, AttemptState.GONE),
        (reappeared, AttemptState.SEEN),
    ],
)
def test_a_state_follows_from_the_journal_whatever_the_black_box_says(
    story: Story, happened: Callable[[Story], None], state: AttemptState, said: str
) -> None:
    """It is asked for until it is proven gone, and what is being ended stays so."""
    happened(story)
    before = story.journal.attempts.get(story.label)
    damage(story, "instances SET state = 'garbage'")
    assert put_right(story, entry(story, state=said))
    after = story.journal.attempts.get(story.label)
    assert after == replace(before, state=state)


@pytest.mark.parametrize(
    ("known", "state"), [("intent", AttemptState.INTENT), ("seen", AttemptState.UNCLEAR)]
)
def test_what_the_black_box_knows_to_be_sent_was_sent(
    story: Story, known: str, state: AttemptState
) -> None:
    intended(story)
    damage(story, "instances SET state = 'garbage'")
    assert put_right(story, entry(story, state=known))
    assert story.journal.attempts.get(story.label).state is state


def test_which_of_two_timers_is_in_force_is_not_guessed(story: Story) -> None:
    """The setup's, of which the run's has taken the place, must not end the box."""
    story.rented()
    timer = armed_again(story)
    assert story.journal.timers.put_in_force(timer)
    damage(story, "timers SET state = 'garbage'")
    assert not put_right(story, entry(story, timer))
    assert story.journal.timers.of(story.label) is None


@pytest.mark.parametrize("happened", [refused, expired])
def test_what_came_back_is_not_settled_again(
    story: Story, happened: Callable[[Story], None]
) -> None:
    happened(story)
    if happened is refused:
        story.journal.attempts.recovered(story.label, None)
    else:
        story.journal.attempts.reappeared(story.label)
    damage(story, "instances SET state = 'garbage'")
    assert put_right(story, entry(story, state="sending"))
    assert story.journal.attempts.get(story.label).state is AttemptState.UNCLEAR


def test_what_is_listed_though_it_was_refused_is_still_being_ended(story: Story) -> None:
    """Else its timer would end the whole run, with the box that it went on with."""
    refused(story)
    story.journal.attempts.reappeared(story.label)
    damage(story, "instances SET ending = 'garbage'")
    assert put_right(story, entry(story))
    assert story.journal.attempts.get(story.label).ending is Ending.FAILED


def test_what_was_never_listed_does_not_become_seen(story: Story) -> None:
    """The proof of its death asks for less where a box was seen."""
    made(story)
    story.journal.endings.end_run(story.run_id, Ending.KILL, "kill", 0.0)
    story.journal.attempts.deleting(story.label)
    damage(story, "instances SET first_seen_at = 'x'")
    assert put_right(story, entry(story))
    assert story.journal.attempts.get(story.label).first_seen_at is None


def test_a_guard_that_is_left_over_is_disarmed(story: Story) -> None:
    gone(story)
    story.journal.timers.guard(story.label, "provider", "disarm_due")
    damage(story, "guards SET state = 'garbage'")
    assert put_right(story, None)
    assert story.journal.timers.guard_state(story.label, "provider") == "disarm_due"


@pytest.mark.parametrize("happened", [sent, seen, deleting, reappeared])
def test_what_was_being_ended_still_is_and_nothing_else(
    story: Story, happened: Callable[[Story], None]
) -> None:
    happened(story)
    before = story.journal.attempts.get(story.label).ending
    damage(story, "instances SET ending = 'garbage'")
    assert put_right(story, entry(story))
    after = story.journal.attempts.get(story.label).ending
    assert (after is None) is (before is None)


def test_a_damaged_box_that_is_being_ended_ends_no_other_of_its_run(story: Story) -> None:
    story.rented()
    story.journal.endings.end_attempt(story.label, Ending.FAILED, "a misfit")
    damage(story, "instances SET ending = 'garbage'")
    assert put_right(story, entry(story))
    assert story.journal.attempts.get(story.label).ending is Ending.FAILED
    assert story.journal.runs.get(story.run_id).ending is None


def test_a_timer_is_put_right_by_an_entry_of_its_own_seq_alone(story: Story) -> None:
    story.rented()
    before = story.journal.timers.of(story.label)
    assert before is not None
    damage(story, "timers SET ends_at = 'x'")
    later = replace(before, seq=2, ends_at=before.ends_at + timedelta(hours=1))
    assert not put_right(story, entry(story, later))
    assert not put_right(story, None)
    assert put_right(story, entry(story, before))
    after = story.journal.timers.of(story.label)
    assert after is not None
    assert (after.fires_at, after.ends_at, after.boot_id) == (before.fires_at, before.ends_at, "")


def test_its_own_instants_hold_a_timer_whose_boot_clock_is_damaged(story: Story) -> None:
    story.rented()
    before = story.journal.timers.of(story.label)
    assert before is not None
    damage(story, "timers SET fires_boot_s = 'x'")
    assert put_right(story, None)
    after = story.journal.timers.of(story.label)
    assert after == replace(before, boot_id="", fires_boot_s=0.0, ends_boot_s=0.0)


def armed_again(story: Story) -> Timer:
    timer = story.timer(2, 20, "run")
    story.journal.timers.arming(timer, story.run_id, story.epoch, Decimal(2), CAPS)
    return timer


@pytest.mark.parametrize("seq", [1, 2])
@pytest.mark.parametrize("stage", ["arming", "in force", "ending"])
def test_one_timer_is_in_force_whichever_state_is_damaged(
    story: Story, stage: str, seq: int
) -> None:
    story.rented()
    timer = armed_again(story)
    if stage != "arming":
        assert story.journal.timers.put_in_force(timer)
    if stage == "ending":
        deleting_run(story.journal, story.run_id)
        seq += 1
    before = states(story)
    damage(story, "timers SET state = 'garbage'", seq)
    assert put_right(story, None)
    assert states(story) == before


def deleting_run(journal: Journal, run_id: str) -> None:
    journal.endings.end_run(run_id, Ending.DEADLINE, "its time is over", 60.0)


def states(story: Story) -> list[tuple[int, str]]:
    with sqlite3.connect(story.journal.database.path) as other:
        found = other.execute("SELECT seq, state FROM timers ORDER BY seq").fetchall()
    other.close()
    return found


def test_a_gone_box_keeps_nobody_from_anything(story: Story) -> None:
    gone(story)
    damage(story, "instances SET usd_per_hour = '2,0'")
    assert damaged(story.journal.database, but_settled=True) == []
    [found] = damaged(story.journal.database)
    assert not found.live


def test_what_another_hand_has_changed_meanwhile_stays(story: Story) -> None:
    story.rented()
    damage(story, "instances SET usd_per_hour = '2,0'")
    known = entry(story)

    def entries() -> dict[str, Entry]:
        damage(story, "instances SET usd_per_hour = '5.00'")
        return {story.label: known}

    assert cells.put_right(story.journal.database, entries, story.clock) == []
    assert story.journal.attempts.get(story.label).usd_per_hour == 5


def test_which_timer_came_later_is_not_guessed(story: Story) -> None:
    """The one that can be read, and may be in force, is not replaced by one that cannot."""
    story.rented()
    armed_again(story)
    damage(story, "timers SET seq = 'garbage', state = 'in_force'", 2)
    damage(story, "timers SET state = 'garbage'", 1)
    assert not put_right(story, entry(story))
    assert dict(states(story)) == {1: "garbage", "garbage": "in_force"}


def test_a_row_that_cannot_be_put_right_keeps_no_other_from_it(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    story.rented()
    with sqlite3.connect(story.journal.database.path) as other:
        for (trigger,) in other.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'ledger'"
        ).fetchall():
            other.execute(f"DROP TRIGGER {trigger}")
    other.close()
    damage(story, "ledger SET at = 'noon'")
    damage(story, "instances SET sent_at = 'noon'")
    damage(story, "timers SET state = 'garbage'")
    left = cells.put_right(story.journal.database, dict, story.clock)
    assert [each.table.name for each in left] == ["instances"]
    assert f"put right: {story.label}: timers.state" in caplog.text


def test_what_another_process_has_put_right_meanwhile_is_right(story: Story) -> None:
    story.rented()
    damage(story, "instances SET usd_per_hour = '2,0'")

    def entries() -> dict[str, Entry]:
        assert put_right(story, entry(story)), "the keeper was faster"
        return {}

    assert cells.put_right(story.journal.database, entries, story.clock) == []


def test_the_words_are_those_of_this_schema() -> None:
    """A word that is new needs a step of the schema: an older keeper takes it for damage."""
    words = {cell: " ".join(sorted(words)) for cell, words in WORDS.items()}
    assert (HEAD, words) == (
        "0003",
        {
            "instances.state": (
                "deleting expired ghost gone intent made refused seen sending unclear"
            ),
            "instances.ending": "deadline done failed kill",
            "timers.state": "arming fired in_force superseded",
            "guards.state": "armed arming disarm_due disarmed none refused unknown",
        },
    )
