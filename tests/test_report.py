"""The bill of one run: seconds and dollars by phase, and what of it was for nothing."""

import json
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpurun import glance, show
from gpurun.model import Ending, RunState
from gpurun.places import Places
from tests.fakecloud import FakeClock
from tests.stories import Story, journal_at

PHASES = ("boot", "accept", "ship", "setup", "data", "verify", "arm", "train", "collect")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def story(tmp_path: Path, clock: FakeClock) -> Iterator[Story]:
    journal = journal_at(tmp_path, clock)
    yield Story(journal, clock)
    journal.close()


def lived(story: Story, clock: FakeClock, **seconds: float) -> None:
    """Each phase for so long, booked."""
    for name, lasts_s in seconds.items():
        row = story.phase(name)
        clock.advance(lasts_s)
        story.journal.ledger.book(story.label, name)
        story.journal.runs.end_phase(row, "ok")


def report(home: Path, clock: FakeClock, run_id: str = "run00001") -> dict[str, Any]:
    return glance.report_document(home, run_id, clock.now())


def usd(document: dict[str, Any]) -> dict[str, str]:
    return {phase["name"]: phase["usd"] for phase in document["phases"]}


def seconds(document: dict[str, Any]) -> dict[str, float]:
    return {phase["name"]: phase["seconds"] for phase in document["phases"]}


def test_what_was_not_setup_data_training_or_collecting_was_wasted(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented()
    lived(story, clock, boot=100, setup=200, data=300, train=1000, collect=100)
    clock.advance(50)
    story.gone()
    document = report(tmp_path, clock)
    assert document["spent_usd"] == "1.75"
    assert document["wasted"] == {
        "usd": "0.15",
        "share": 0.0857,
        "no_step_usd": "0.00",
        "waiting_usd": "0.10",
        "idle_usd": "0.00",
        "ending_usd": "0.05",
    }


def test_a_training_that_hung_is_idle_from_its_last_sign_on(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented(minutes=60)
    lived(story, clock, setup=100, train=1000)
    since = clock.now() - timedelta(seconds=600)
    progress = {"step": 5, "idle_since": since.isoformat()}
    story.journal.runs.progress(story.run_id, progress)
    story.gone(Ending.FAILED, RunState.FAILED)
    document = report(tmp_path, clock)
    assert usd(document) == {"rent": "0.00", "setup": "0.10", "train": "0.40", "idle": "0.60"}
    assert seconds(document)["train"] == 400 and seconds(document)["idle"] == 600
    assert document["wasted"]["idle_usd"] == document["wasted"]["usd"] == "0.60"


def test_gpus_that_were_idle_when_the_timer_came_are_idle(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented(minutes=60)
    lived(story, clock, train=1000)
    story.journal.runs.progress(story.run_id, {"step": 5, "kept": {"idle_s": 250}})
    story.gone(Ending.DEADLINE, RunState.DEADLINE)
    assert usd(report(tmp_path, clock))["idle"] == "0.25"


def test_a_run_that_failed_before_its_first_step_was_all_for_nothing(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented(minutes=60)
    lived(story, clock, setup=900, train=60, data=720, collect=120)
    story.gone(Ending.FAILED, RunState.FAILED)
    document = report(tmp_path, clock)
    assert document["wasted"]["no_step_usd"] == document["wasted"]["usd"] == "1.80"
    assert document["wasted"]["share"] == 1.0


def test_what_failed_after_it_took_steps_was_not_all_for_nothing(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented(minutes=60)
    lived(story, clock, train=900)
    story.journal.runs.progress(story.run_id, {"step": 5})
    story.gone(Ending.FAILED, RunState.FAILED)
    assert report(tmp_path, clock)["wasted"]["usd"] == "0.00"


def test_of_a_box_that_is_set_up_the_best_is_assumed(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented()
    lived(story, clock, boot=100, setup=100)
    assert report(tmp_path, clock)["wasted"]["usd"] == "0.10"


def test_what_the_provider_charged_is_shared_by_what_it_was_paid_for(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented()
    lived(story, clock, boot=100, train=300)
    story.gone()
    story.journal.ledger.settle(story.label, Decimal("0.80"))
    document = report(tmp_path, clock)
    assert (usd(document)["settle"], document["spent_usd"]) == ("0.40", "0.80")
    assert (document["wasted"]["usd"], document["wasted"]["share"]) == ("0.20", 0.25)


def test_a_training_that_its_driver_left_lasts_as_long_as_it_was_booked(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented(minutes=60)
    row = story.phase("train")
    clock.advance(10)
    story.journal.runs.end_phase(row, "goes on")
    clock.advance(990)
    story.journal.ledger.book(story.label, "train")
    assert seconds(report(tmp_path, clock))["train"] == 1000


def test_a_phase_that_a_killed_driver_left_open_ends_with_the_next(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    story.rented(minutes=60)
    story.phase("setup")
    clock.advance(100)
    lived(story, clock, setup=50, data=70)
    story.gone()
    assert seconds(report(tmp_path, clock)) == {"rent": 0.0, "setup": 150.0, "data": 70.0}


AMOUNT = st.decimals(0, 50, places=4)
LASTING = st.lists(st.tuples(st.sampled_from(PHASES), st.floats(0.01, 9000)), max_size=8)


@settings(max_examples=25, deadline=None)
@given(
    rate=AMOUNT,
    phases=LASTING,
    ending=st.sampled_from([None, *Ending]),
    progress=st.sampled_from(["{}", '{"step": 3}', '{"kept": {"idle_s": 333.3}}', "garbage"]),
    charged=st.none() | AMOUNT,
    hold=AMOUNT,
)
def test_phases_and_waste_sum_to_the_cent_whatever_happened(
    tmp_path_factory: pytest.TempPathFactory,
    rate: Decimal,
    phases: list[tuple[str, float]],
    ending: Ending | None,
    progress: str,
    charged: Decimal | None,
    hold: Decimal,
) -> None:
    home, clock = tmp_path_factory.mktemp("home"), FakeClock()
    story = Story(journal_at(home, clock), clock, usd_per_hour=rate).rented(minutes=9000)
    story.journal.ledger.hold(story.label, 300, hold)
    for name, lasts_s in phases:
        lived(story, clock, **{name: lasts_s})
    clock.advance(12.3)
    if ending is not None:
        story.gone(ending, RunState.DONE)
        if charged is not None:
            story.journal.ledger.settle(story.label, charged)
    story.journal.close()
    sql(home, "UPDATE runs SET progress_json = ?", progress)
    document = report(home, clock)
    spent = Decimal(document["spent_usd"])
    assert sum(map(Decimal, usd(document).values())) == spent
    wasted = document["wasted"]
    whys = [Decimal(value) for name, value in wasted.items() if name.endswith("_usd")]
    assert sum(whys) == Decimal(wasted["usd"]) <= spent
    assert wasted["share"] is None or 0 <= wasted["share"] <= 1


DAMAGED = (
    "INSERT INTO ledger (run_id, label, at, kind, phase, usd) VALUES {}",
    "('run00001', '', 0, 'accrue', 'boot', 'lots')",
    "('run00001', 'x', 'soon', 'accrue', 'boot', 'NaN')",
    "('run00001', 'x', 1e300, 'settle', x'ff00', '1e999999')",
    "('run00001', '', 0, 'stolen', 'boot', '7')",
    "('', '', 0, 'accrue', '', '7')",
)


def test_damaged_rows_break_no_report(tmp_path: Path, clock: FakeClock, story: Story) -> None:
    story.rented()
    lived(story, clock, boot=100, train=100)
    story.gone()
    before = report(tmp_path, clock)["spent_usd"]
    sql(tmp_path, DAMAGED[0].format(", ".join(DAMAGED[1:])))
    sql(tmp_path, "UPDATE phases SET began_at = 'then', ended_at = 1e300 WHERE phase = 'boot'")
    sql(tmp_path, "UPDATE runs SET progress_json = '[', recipe_json = '7', options_json = '[]'")
    document = report(tmp_path, clock)
    assert document["spent_usd"] == before == "0.20"
    assert json.dumps(document, allow_nan=False)


def sql(home: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(Places(home).database) as database:
        database.execute(statement, values)
    database.close()


def test_the_bill_reads_like_a_post_mortem(tmp_path: Path, clock: FakeClock, story: Story) -> None:
    story.usd_per_hour = Decimal("7.56")
    story.rented(minutes=60)
    lived(story, clock, boot=180, setup=720, data=660, train=120)
    clock.advance(120)
    story.gone()
    text = show.report_text(report(tmp_path, clock), show.Look())
    assert text.splitlines()[:8] == [
        "PHASE    DURATION  COST @ $7.56/h",
        "rent         0:00           $0.00",
        "boot         3:00           $0.38",
        "setup       12:00           $1.51",
        "data        11:00           $1.39",
        "train        2:00           $0.25",
        "destroy      2:00           $0.25",
        "total       30:00           $3.78",
    ]
    wasted = "wasted $0.63 (17%): $0.38 waiting for boxes and their checks, $0.25 ending boxes"
    assert text.splitlines()[8] == wasted
