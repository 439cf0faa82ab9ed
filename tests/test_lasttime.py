"""What a recipe took the last time, shown before it is paid for again."""

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from gpurun import engine, show
from gpurun.clock import SystemClock
from gpurun.engine import Plan
from gpurun.glance.lasttime import LastTime, document, last_time, shortfall, words
from gpurun.model import Ending, RunState
from gpurun.places import Places
from gpurun.recipe import Recipe, find, load
from gpurun.settings import Settings
from tests.fakecloud import FakeClock
from tests.stories import RECIPE, Story, journal_at

TRAIN = {"run": "python -m app.train"}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def story(tmp_path: Path, clock: FakeClock) -> Iterator[Story]:
    journal = journal_at(tmp_path, clock)
    yield Story(journal, clock)
    journal.close()


def trained(
    story: Story, run_id: str, *, gpu: str = "H100", hours: float = 2, step: int = 1000
) -> None:
    """A run of `smoke` that trained so long, then ended well, or by its timer short of 1000."""
    one = Story(story.journal, story.clock, run_id, Decimal("7.50")).rented(minutes=6000)
    story.clock.advance(600)
    one.journal.ledger.book(one.label, "setup")
    story.clock.advance(hours * 3600)
    one.journal.ledger.book(one.label, "train")
    pace = {"steps": 310.0, "seconds": 100.0}
    progress = {"step": step, "total_steps": 1000, "it_per_s": 2.0, "kept": {"pace": pace}}
    one.journal.runs.progress(run_id, progress)
    over = (Ending.DONE, RunState.DONE) if step == 1000 else (Ending.DEADLINE, RunState.DEADLINE)
    one.gone(*over)
    sql(story, "UPDATE instances SET gpu = ? WHERE run_id = ?", gpu, run_id)
    recipe = json.dumps(RECIPE | {"train": TRAIN})
    sql(story, "UPDATE runs SET recipe_json = ? WHERE id = ?", recipe, run_id)


def sql(story: Story, statement: str, *values: object) -> None:
    with sqlite3.connect(story.journal.database.path) as database:
        database.execute(statement, values)
    database.close()


def found(home: Path, clock: FakeClock, gpu: str | None = "H100", count: int = 4) -> LastTime:
    last = last_time(home, "smoke", gpu, count, clock.now())
    assert last is not None
    return last


def test_the_last_run_of_a_recipe_says_speed_time_and_dollars(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    trained(story, "first001", hours=1)
    trained(story, "second01", hours=2 + 1 / 6)
    last = found(tmp_path, clock)
    assert last.run_id == "second01"
    assert words(last) == "3.1 it/s on 4x H100, 2 h 10 min of training, $17.50"
    assert document(last)["train_s"] == 7800


def test_the_same_gpus_are_a_better_guide_than_a_later_run(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    trained(story, "onh100s1")
    trained(story, "ona100s1", gpu="A100")
    assert found(tmp_path, clock).run_id == "onh100s1"
    assert found(tmp_path, clock, "A100").run_id == "ona100s1"
    assert found(tmp_path, clock, "B200").run_id == "ona100s1"


def test_a_recipe_that_has_never_trained_has_no_history(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    assert last_time(tmp_path / "none", "smoke", "H100", 4, clock.now()) is None
    failed = Story(story.journal, clock, "failed01").rented()
    failed.gone(Ending.FAILED, RunState.FAILED)
    Story(story.journal, clock, "empty001").rented().gone()
    assert last_time(tmp_path, "smoke", "H100", 4, clock.now()) is None
    trained(story, "good0001")
    assert last_time(tmp_path, "another", "H100", 4, clock.now()) is None


def test_a_training_that_its_timer_cut_off_says_where(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    trained(story, "cutoff01", step=400)
    last = found(tmp_path, clock)
    assert words(last).endswith("$16.25; its timer came at step 400 of 1,000")
    assert last.needs_s() == pytest.approx(5 * 3600)


def test_a_plan_that_is_too_short_for_it_says_what_is_missing(
    tmp_path: Path, clock: FakeClock, story: Story
) -> None:
    trained(story, "good0001", hours=2)
    last, rate = found(tmp_path, clock), Decimal("7.50")
    short = shortfall(last, "H100", 4, TRAIN, 3600, rate)
    assert short == (
        "at that speed it will not finish before its timer: at about step 500 of 1,000; "
        "1 h and $7.50 more"
    )
    assert shortfall(last, "H100", 4, TRAIN, 7200, rate) == ""
    assert shortfall(last, "H100", 8, TRAIN, 3600, rate) == ""  # another speed
    assert shortfall(last, "H100", 4, {"run": "another"}, 3600, rate) == ""
    unknown = replace(last, step=None, total_steps=None)
    assert "timer: 1 h and $7.50 more" in shortfall(unknown, "H100", 4, TRAIN, 3600, rate)


def test_a_plan_shows_what_the_recipe_took_the_last_time(
    tmp_path: Path, clock: FakeClock, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPURUN_HOME", str(tmp_path))
    recipe = load("smoke", provider="local")
    without = plan_of(recipe)
    assert without.last_time is None and "last time" not in show.plan_text(without, steps=False)
    trained(story, "good0001", hours=2)
    sql(story, "UPDATE instances SET gpu = NULL, gpu_count = 0")
    sql(story, "UPDATE runs SET recipe_json = ?", json.dumps(recipe.to_dict()))
    plan = plan_of(recipe)
    text = show.plan_text(plan, steps=False)
    assert "  last time 3.1 it/s on a machine without a GPU, 2 h of training, $16.25" in text
    assert "  last time at that speed it will not finish before its timer: at about step" in text
    assert show.plan_document(plan)["last_time"]["run"] == "good0001"


def plan_of(recipe: Recipe) -> Plan:
    return engine.plan(
        recipe,
        find("smoke").parent,
        provider="local",
        offer_id=None,
        settings=Settings(),
        clock=SystemClock(),
    )


def test_damaged_rows_are_no_history(tmp_path: Path, clock: FakeClock, story: Story) -> None:
    trained(story, "good0001")
    sql(story, "UPDATE runs SET progress_json = '[1', created_at = 'then'")
    last = found(tmp_path, clock)
    assert (last.it_per_s, last.step, last.began_at) == (None, None, None)
    sql(story, "UPDATE runs SET recipe_json = 'x'")
    assert last_time(tmp_path, "smoke", "H100", 4, clock.now()) is None
    Places(tmp_path).database.write_bytes(b"no database" * 1000)
    assert last_time(tmp_path, "smoke", "H100", 4, clock.now()) is None
