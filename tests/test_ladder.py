"""The ladder: `requires` shows the run that has proven a recipe, or refuses it."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from gpurun.model import Ending, RunState
from gpurun.store import Journal
from tests.fakecloud import FakeClock
from tests.homes import Home
from tests.stories import Story, journal_at


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def journal(tmp_path: Path, clock: FakeClock) -> Iterator[Journal]:
    journal = journal_at(tmp_path, clock)
    yield journal
    journal.close()


def long_one(home: Home) -> Path:
    path = home.recipe(name="long")
    path.write_text(f"{path.read_text()}requires:\n  recipe: tiny\n  within_days: 2\n")
    return path


def test_a_long_run_is_bought_once_the_short_one_is_proven(home: Home) -> None:
    recipe = long_one(home)
    refused = home.run("up", recipe, "--yes")
    assert refused.returncode == 3
    assert "requires a run of tiny, done within 2 days" in refused.stderr
    assert "`gpurun up tiny --provider local`" in refused.stderr
    assert not home.places.database.exists()
    done = home.run("up", home.recipe(), "--yes")
    assert done.returncode == 0, done.stderr
    proof = home.last_run()
    planned = home.run("up", recipe, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert f"proven by run {proof} of tiny on a box without GPU at local" in planned.stdout


def test_a_run_of_other_code_proves_nothing(home: Home) -> None:
    code = home.work / "code"
    code.mkdir()
    (code / "train.py").write_text("print(1)\n")
    recipe, short = long_one(home), home.recipe()
    for path in (recipe, short):
        path.write_text(f"{path.read_text()}ship:\n  - from: code\n    to: code\n")
    assert home.run("up", short, "--yes").returncode == 0
    assert home.run("up", recipe, "--dry-run").returncode == 0
    (code / "train.py").write_text("print(2)\n")
    refused = home.run("up", recipe, "--dry-run", "--json")
    assert refused.returncode == 3
    assert json.loads(refused.stdout)["error"]["class"] == "NotProven"


def test_what_was_skipped_is_in_the_report(home: Home) -> None:
    done = home.run("up", long_one(home), "--yes", "--skip-ladder")
    assert done.returncode == 0, done.stderr
    run = home.last_run()
    said = "--skip-ladder: no run of tiny on a box without GPU at local was asked for"
    assert said in home.run("report", run).stdout
    report = json.loads(home.run("report", run, "--json").stdout)
    assert said in [event["detail"] for event in report["events"] if event["what"] == "note"]


def test_only_what_is_done_lately_on_such_a_gpu_there_is_a_proof(
    journal: Journal, clock: FakeClock
) -> None:
    since = clock.now() - timedelta(days=7)
    story = Story(journal, clock, provider="ssh:root@host:22").rented()
    proven = journal.proven.by
    assert proven("smoke", "ab12", "H100", "ssh", since) is None  # not over yet
    story.gone()
    found = proven("smoke", "ab12", "H100", "ssh", since)
    assert found is not None
    assert found.run_id == story.run_id
    assert proven("tiny", "ab12", "H100", "ssh", since) is None
    assert proven("smoke", "cd34", "H100", "ssh", since) is None
    assert proven("smoke", "ab12", "A100", "ssh", since) is None
    assert proven("smoke", "ab12", "H100", "vast", since) is None
    assert proven("smoke", "ab12", "H100", "ssh", clock.now() + timedelta(seconds=1)) is None


def test_a_failed_run_proves_nothing(journal: Journal, clock: FakeClock) -> None:
    Story(journal, clock).rented().gone(Ending.FAILED, RunState.FAILED)
    assert journal.proven.by("smoke", "ab12", "H100", "local", clock.now()) is None
