"""The quick reader: its documents, its money, and what it says when the journal cannot be read."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpurun import glance
from gpurun.blackbox import BlackBox
from gpurun.errors import UsageError
from gpurun.glance import lines
from gpurun.glance.runs import TRAIN_KEYS
from gpurun.locks import hold
from gpurun.model import Ending, RunState
from gpurun.places import Places
from gpurun.timers import entry_of
from tests.fakecloud import FakeClock
from tests.stories import ACCOUNT, Story, journal_at

RUN_KEYS = [
    "id",
    "recipe",
    "provider",
    "instance_id",
    "gpu",
    "gpu_count",
    "phase",
    "state",
    "reason",
    "exit_code",
    "started_at",
    "elapsed_s",
    "usd_per_hour",
    "spent_usd",
    "projected_usd",
    "budget_usd",
    "timer",
    "kept_until",
    "guards",
    "if_lost",
    "train",
    "task",
    "forecast",
    "verdict",
    "collected_at",
    "collected_step",
    "collect_to",
    "links",
    "git",
    "receipt",
    "damage",
    "error",
]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def story(tmp_path: Path, clock: FakeClock) -> Iterator[Story]:
    journal = journal_at(tmp_path, clock)
    yield Story(journal, clock)
    journal.close()


def shown(home: Path, clock: FakeClock, run_id: str = "run00001") -> dict[str, Any]:
    return glance.run_document(home, run_id, clock.now())


def test_without_a_journal_there_are_no_runs(tmp_path: Path, clock: FakeClock) -> None:
    document = glance.status(tmp_path / "none", clock.now())
    assert (document["runs"], document["orphans"]) == ([], [])
    assert not (tmp_path / "none").exists()


def test_a_run_has_exactly_the_documented_fields(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented()
    document = glance.status(tmp_path, clock.now())
    assert list(document) == [
        "checked_at",
        "runs",
        "orphans",
        "orphans_checked_at",
        "troubles",
        "caps",
        "notify",
    ]
    assert list(document["runs"][0]) == RUN_KEYS


def test_a_run_of_the_black_box_has_the_same_fields(clock: FakeClock, story: Story) -> None:
    story.rented()
    attempt = story.journal.attempts.get(story.label)
    entry = entry_of(attempt, story.timer(1, 5), "seen")
    assert list(lines.document(entry, "why", clock.now())) == RUN_KEYS


def test_money_runs_on_between_two_bookings(tmp_path: Path, clock: FakeClock, story: Story) -> None:
    story.rented()
    clock.advance(100)
    story.journal.ledger.book(story.label, "boot")
    clock.advance(50)
    run = shown(tmp_path, clock)
    assert (run["spent_usd"], run["usd_per_hour"]) == ("0.15", "3.60")


def test_shown_money_is_never_below_what_was_billed(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented()
    clock.advance(1.5)
    assert shown(tmp_path, clock)["spent_usd"] == "0.01"
    assert shown(tmp_path, clock)["projected_usd"] == "0.66"  # until its timer


def test_a_box_that_is_gone_costs_no_more(tmp_path: Path, clock: FakeClock, story: Story) -> None:
    story.rented()
    clock.advance(100)
    story.gone()
    clock.advance(5000)
    run = shown(tmp_path, clock)
    assert (run["spent_usd"], run["projected_usd"], run["timer"]) == ("0.10", "0.10", None)
    assert run["elapsed_s"] == 100


def test_the_time_until_the_proof_is_shown_even_if_nobody_booked_it(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented()
    clock.advance(100)
    story.journal.attempts.gone(story.label, "{}")
    clock.advance(100)
    assert shown(tmp_path, clock)["spent_usd"] == "0.10"


def test_a_ghost_is_shown_with_what_is_reserved_for_it_at_most(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.begun()
    attempts = story.journal.attempts
    from gpurun.store.ledger import Caps

    attempts.intend(
        story.attempt(), story.timer(1, 10), [], Decimal(1), Caps(Decimal(13)), story.epoch
    )
    attempts.sending(story.label, story.epoch)
    attempts.unclear(story.label, "no answer")
    attempts.ghost(story.label)
    clock.advance(24 * 3600)
    assert shown(tmp_path, clock)["spent_usd"] == "0.90"


def test_the_deadline_shown_is_that_of_the_earliest_guard_by_name(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented(minutes=10).watched()
    timers = story.journal.timers
    timers.guard(story.label, "fuse", "armed", seq=1, ends_at=clock.now() + timedelta(minutes=11))
    assert shown(tmp_path, clock)["timer"]["effective_by"] == "keeper"
    timers.guard(story.label, "fuse", "armed", seq=1, ends_at=clock.now() + timedelta(minutes=4))
    timer = shown(tmp_path, clock)["timer"]
    assert (timer["effective_by"], timer["remaining_s"]) == ("fuse", 360.0)


def test_a_keeper_that_has_not_listed_the_account_is_no_guard(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented()
    story.journal.keepers.beat("0.1.0")
    story.journal.keepers.listed("local", "another account")
    run = shown(tmp_path, clock)
    assert [(g["name"], g["state"]) for g in run["guards"]] == [
        ("keeper", "unknown"),
        ("fuse", "none"),
    ]
    assert (run["timer"]["effective_at"], run["timer"]["effective_by"]) == (None, None)
    story.journal.keepers.listed("local", ACCOUNT)
    assert shown(tmp_path, clock)["timer"]["effective_by"] == "keeper"


def test_a_keeper_that_stopped_beating_is_no_guard(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented().watched()
    clock.advance(15)
    assert shown(tmp_path, clock)["guards"][0]["state"] == "armed"
    clock.advance(1)
    assert shown(tmp_path, clock)["guards"][0]["state"] == "unknown"


def test_a_fuse_not_read_for_three_minutes_can_only_be_earlier(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented(minutes=60)
    soon = clock.now() + timedelta(minutes=20)
    story.journal.timers.guard(story.label, "fuse", "armed", seq=1, ends_at=soon)
    clock.advance(181)
    run = shown(tmp_path, clock)
    assert run["guards"][1]["state"] == "unknown"
    assert run["timer"]["effective_by"] is None  # of an unread fuse nothing is promised
    story.watched()
    assert shown(tmp_path, clock)["timer"]["effective_by"] == "fuse"


def test_a_fuse_with_an_older_timer_lags(tmp_path: Path, clock: FakeClock, story: Story) -> None:
    story.rented().watched()
    ends_at = clock.now() + timedelta(minutes=11)
    story.journal.timers.guard(story.label, "fuse", "armed", seq=1, ends_at=ends_at)
    story.journal.endings.end_run(story.run_id, Ending.KILL, "gpurun kill", 60)
    run = shown(tmp_path, clock)
    assert (run["timer"]["seq"], run["timer"]["kind"]) == (2, "ending")
    assert (run["guards"][1]["state"], run["guards"][1]["seq"]) == ("lagging", 1)


def test_progress_becomes_a_forecast(tmp_path: Path, clock: FakeClock, story: Story) -> None:
    story.rented(minutes=10)
    story.journal.runs.progress(story.run_id, {"step": 5, "total_steps": 10, "eta_s": 100.0})
    run = shown(tmp_path, clock)
    assert tuple(run["train"]) == TRAIN_KEYS
    assert run["forecast"]["usd_to_finish"] == run["projected_usd"] == "0.10"
    assert run["forecast"]["before_timer"] is True
    story.journal.runs.progress(story.run_id, {"step": 5, "total_steps": 10, "eta_s": 9000.0})
    late = shown(tmp_path, clock)
    assert (late["forecast"]["before_timer"], late["projected_usd"]) == (False, "0.66")


def test_a_training_that_its_timer_cuts_off_says_where_and_what_the_rest_costs(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented(minutes=10)
    progress = {"step": 40_000, "total_steps": 50_000, "eta_s": 1000.0}
    story.journal.runs.progress(story.run_id, progress)
    late = shown(tmp_path, clock)["forecast"]
    assert (late["step_at_timer"], late["late_s"], late["usd_late"]) == (46_000, 400.0, "0.40")
    story.journal.runs.progress(story.run_id, {"eta_s": 1000.0})
    assert shown(tmp_path, clock)["forecast"]["step_at_timer"] is None
    story.journal.runs.progress(story.run_id, progress | {"eta_s": 0})
    assert shown(tmp_path, clock)["forecast"]["late_s"] == 0
    story.journal.endings.end_run(story.run_id, Ending.DONE, "finished", 60)
    clock.advance(1)
    assert shown(tmp_path, clock)["forecast"] is None  # its timer is that of its end now


def test_a_label_that_reappears_bills_visibly(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented()
    story.gone()
    assert shown(tmp_path, clock)["state"] == "done"
    story.journal.attempts.reappeared(story.label)
    for n in range(12):
        Story(story.journal, clock, f"later{n:03}").rented().gone()
    runs = glance.status(tmp_path, clock.now())["runs"]
    assert [(r["id"], r["state"], r["exit_code"]) for r in runs[:1]] == [
        ("run00001", "still_billing", 10)
    ]


def test_a_state_that_this_version_does_not_know_bills(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented()
    _sql(tmp_path, "UPDATE instances SET state = 'hibernating'")
    clock.advance(100)
    assert shown(tmp_path, clock)["spent_usd"] == "0.10"


def test_status_shows_live_runs_and_the_last_ten(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented()
    for n in range(15):
        clock.advance(10)
        Story(story.journal, clock, f"done{n:04}").rented().gone()
    ids = [run["id"] for run in glance.status(tmp_path, clock.now())["runs"]]
    assert ids == ["run00001", *(f"done{n:04}" for n in range(14, 4, -1))]
    assert len(glance.status(tmp_path, clock.now(), every=True)["runs"]) == 16


def test_the_phases_sum_to_the_total_to_the_cent(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.usd_per_hour = Decimal("7.77")
    clock.advance(3)
    story.rented()
    for name, seconds in (("boot", 11.3), ("setup", 133.7), ("train", 401.9)):
        row = story.phase(name)
        clock.advance(seconds)
        story.journal.ledger.book(story.label, name)
        story.journal.runs.end_phase(row, "ok")
    clock.advance(21.1)
    story.gone()
    document = glance.final_document(tmp_path, story.run_id, clock.now())
    usd = [Decimal(phase["usd"]) for phase in document["phases"]]
    assert sum(usd) == Decimal(document["spent_usd"]) == Decimal("1.23")
    named = {phase["name"]: phase["seconds"] for phase in document["phases"]}
    assert named == {"rent": 0.0, "boot": 11.3, "setup": 133.7, "train": 401.9, "destroy": 21.1}
    assert document["destroyed_at"] == document["receipt"]["gone_at"] == "2026-11-21T12:09:31.000Z"


def test_settling_makes_the_bill_that_of_the_provider(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented()
    clock.advance(100.123)
    story.gone()
    assert story.journal.ledger.settle(story.label, Decimal("0.42"))
    document = glance.final_document(tmp_path, story.run_id, clock.now())
    assert document["spent_usd"] == "0.42"
    assert sum(Decimal(phase["usd"]) for phase in document["phases"]) == Decimal("0.42")


def test_artifacts_are_listed_with_their_digests(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented()
    story.journal.runs.collected("run00001", [{"path": "/runs/a", "bytes": 3, "sha256": "ff"}])
    document = glance.final_document(tmp_path, story.run_id, clock.now())
    assert document["artifacts"] == [{"path": "/runs/a", "bytes": 3, "sha256": "ff"}]
    assert document["destroyed_at"] is None


def test_a_report_tells_every_timer_and_event(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented()
    story.gone(Ending.KILL, RunState.KILLED)
    document = glance.report_document(tmp_path, story.run_id, clock.now())
    assert [timer["kind"] for timer in document["timers"]] == ["setup", "ending"]
    assert [event["what"] for event in document["events"]] == ["driver", "kill", "gone", "finish"]


def test_an_id_can_be_shortened_while_it_is_not_ambiguous(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented()
    Story(story.journal, clock, "rum00001").begun()
    assert glance.resolve(tmp_path, "run") == "run00001"
    with pytest.raises(UsageError, match="rum00001, run00001"):
        glance.resolve(tmp_path, "ru")
    for unknown in ("x", "", "*", "run00001x"):
        with pytest.raises(UsageError, match="no run"):
            glance.resolve(tmp_path, unknown)


def test_a_locked_journal_is_answered_from_the_black_box(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    _armed(tmp_path, story)
    story.journal.close()
    other = sqlite3.connect(Places(tmp_path).database)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    try:
        run = shown(tmp_path, clock)
        assert (run["id"], run["instance_id"], run["timer"]["seq"]) == ("run00001", "i-1", 1)
        assert "another program holds it locked" in run["error"]
        assert "timers.log" in glance.trouble(tmp_path)
        assert glance.resolve(tmp_path, "run0") == "run00001"
    finally:
        other.close()


@pytest.mark.parametrize("damage", [b"this is not a database" * 400, b"SQLite format 3\0" * 300])
def test_a_corrupt_journal_is_answered_from_the_black_box(
    tmp_path: Path, clock: FakeClock, story: Story, damage: bytes
) -> None:
    _armed(tmp_path, story)
    story.journal.close()
    for path in tmp_path.glob("gpurun.db*"):
        path.unlink()
    Places(tmp_path).database.write_bytes(damage)
    clock.advance(12 * 60 + 1)
    run = shown(tmp_path, clock)
    assert (run["state"], run["exit_code"]) == ("still_billing", 10)  # a minute past its end
    assert glance.needs_keeper(tmp_path)


def test_a_restored_journal_does_not_hide_what_the_black_box_knows(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    _armed(tmp_path, story)
    _sql(tmp_path, "DELETE FROM instances", "DELETE FROM runs")
    runs = glance.status(tmp_path, clock.now())["runs"]
    assert [(run["id"], run["state"]) for run in runs] == [("run00001", "active")]
    assert "restored" in runs[0]["error"]


def test_an_older_schema_reads_as_far_as_it_goes(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented()
    _sql(
        tmp_path,
        "ALTER TABLE runs DROP COLUMN progress_json",
        "ALTER TABLE runs DROP COLUMN collected_json",
        "ALTER TABLE runs DROP COLUMN reason",
        "ALTER TABLE instances DROP COLUMN evidence_json",
        "DROP TABLE keeper_accounts",
        "DROP TABLE guards",
    )
    clock.advance(100)
    run = shown(tmp_path, clock)
    assert list(run) == RUN_KEYS
    assert (run["spent_usd"], run["train"], run["reason"]) == ("0.10", None, None)


def test_a_newer_schema_reads_as_far_as_it_is_known(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented()
    _sql(
        tmp_path,
        "ALTER TABLE runs ADD COLUMN mood TEXT DEFAULT 'sunny'",
        "UPDATE alembic_version SET version_num = '9999'",
        """UPDATE runs SET progress_json = '["not", "a", "mapping"]', recipe_json = '{{{'""",
    )
    run = shown(tmp_path, clock)
    assert (list(run), run["train"], run["budget_usd"]) == (RUN_KEYS, None, None)


def test_reading_writes_nothing(tmp_path: Path, clock: FakeClock, story: Story) -> None:
    story.rented()
    story.journal.close()
    database = Places(tmp_path).database
    before = database.read_bytes()
    glance.status(tmp_path, clock.now(), every=True)
    glance.report_document(tmp_path, story.run_id, clock.now())
    assert database.read_bytes() == before


def test_the_keeper_is_needed_while_something_lives_and_nobody_holds_its_lock(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    assert not glance.needs_keeper(tmp_path)
    story.rented()
    assert glance.needs_keeper(tmp_path)
    with hold(Places(tmp_path).keeper_lock):
        assert not glance.needs_keeper(tmp_path)
    story.gone()
    assert not glance.needs_keeper(tmp_path)


def test_glance_needs_nothing_but_the_standard_library() -> None:
    heavy = "sqlmodel sqlalchemy pydantic pydantic_settings httpx fabric apscheduler alembic typer"
    check = f"import gpurun.glance, sys; sys.exit(any(n in sys.modules for n in {heavy.split()}))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def _armed(home: Path, story: Story) -> None:
    """A live run in the journal and in the black box."""
    story.rented(minutes=10)
    attempt, timer = story.journal.attempts.get(story.label), story.journal.timers.of(story.label)
    assert timer is not None
    BlackBox(Places(home).blackbox, "owner1", "machine").append(entry_of(attempt, timer, "seen"))


def _sql(home: Path, *statements: str) -> None:
    with sqlite3.connect(Places(home).database) as database:
        for statement in statements:
            database.execute(statement)
    database.close()
