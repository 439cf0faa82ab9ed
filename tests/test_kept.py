"""A failed box that is kept for a look: how long, how it ends, what the run comes to."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.engine.late import late_collect_s
from gpurun.settings import Settings
from tests.homes import WAITS, Home

FAILS = "mkdir -p out; echo half > out/result.txt; echo so far; exit 3"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.close()


def kept(home: Home, minutes: float, run_minutes: float = 5) -> str:
    """A run that has failed, and is kept."""
    run = home.up(recipe(home, minutes, run_minutes))
    home.until(lambda: home.document(run)["kept_until"] is not None, 90)
    return run


def recipe(home: Home, minutes: float, run_minutes: float = 5, train: str = FAILS) -> Path:
    path = home.recipe(train=train, run_minutes=run_minutes)
    text = path.read_text().replace("budget:\n", f"budget:\n  keep_on_failure_minutes: {minutes}\n")
    path.write_text(text)
    return path


def test_a_failed_box_is_kept_inside_its_timer_and_then_ended_as_failed(home: Home) -> None:
    run = kept(home, minutes=0.8)
    document = home.document(run)
    assert (document["state"], document["exit_code"]) == ("active", None)
    assert "exit" in document["error"]
    assert document["timer"]["kind"] == "keep"
    assert document["timer"]["seq"] == 3
    said = home.run("status").stdout
    assert f"{run}: failed, and kept for a look until" in said
    assert f"`gpurun kill {run}` ends it now" in said
    refused = home.run("extend", run, "5m", "--yes")
    assert (refused.returncode, "has failed" in refused.stderr) == (2, True)
    home.until_finished(run)
    over = home.document(run)
    assert (over["state"], over["exit_code"], over["kept_until"]) == ("failed", 5, None)
    assert over["receipt"]["ended_by"] == "failed"
    assert over["error"] == document["error"]
    assert (home.work / "runs" / run / "out" / "result.txt").read_text() == "half\n"
    assert home.box_processes() == []
    report = json.loads(home.run("report", run, "--json").stdout)
    assert "keep" in [phase["name"] for phase in report["phases"]]


def test_one_can_look_into_it_and_kill_it_at_once(home: Home) -> None:
    run = kept(home, minutes=4)
    looked = home.run("ssh", run, "--", "pwd")
    assert (looked.returncode, bool(looked.stdout.strip())) == (0, True), looked.stderr
    killed = home.run("kill", run, "--yes", "--no-collect")
    assert killed.returncode == 0, killed.stderr
    over = home.document(run)
    assert (over["state"], over["exit_code"]) == ("failed", 5)
    assert home.box_processes() == []


def test_it_is_kept_no_longer_than_its_timer_would_let_it_live(home: Home) -> None:
    run = kept(home, minutes=600, run_minutes=2)
    timers = json.loads(home.run("report", run, "--json").stdout)["timers"]
    (armed,) = [timer for timer in timers if timer["kind"] == "run"]
    (keeps,) = [timer for timer in timers if timer["kind"] == "keep"]
    assert keeps["ends_at"] <= armed["ends_at"]
    assert keeps["fires_at"] <= armed["fires_at"]
    assert home.run("kill", run, "--yes", "--no-collect").returncode == 0


def test_a_driver_that_dies_does_not_lengthen_it_nor_train_again(home: Home) -> None:
    run = kept(home, minutes=0.6)
    until = home.document(run)["kept_until"]
    journal = home.journal()
    first = journal.runs.driver_pid(run)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    home.until(lambda: journal.runs.driver_pid(run) != first)
    assert home.document(run)["kept_until"] in (until, None)
    home.until_finished(run)
    assert home.document(run)["state"] == "failed"
    log = (home.places.run_dir(run) / "train.log").read_text()
    assert log.count("so far") == 1
    journal.close()


def test_without_the_wish_a_failed_box_is_ended_at_once(home: Home) -> None:
    run = home.up(home.recipe(train=FAILS))
    home.until_finished(run)
    timers = json.loads(home.run("report", run, "--json").stdout)["timers"]
    assert "keep" not in [timer["kind"] for timer in timers]


def test_a_kill_of_what_has_not_failed_is_a_kill(home: Home) -> None:
    run = home.up(recipe(home, 5, train=WAITS))
    home.until_phase(run, "train")
    assert home.run("kill", run, "--yes", "--no-collect").returncode == 0
    assert home.document(run)["state"] == "killed"


@pytest.mark.parametrize(
    ("recipe_json", "seconds"),
    [
        ('{"budget": {"late_collect_minutes": "7.5"}}', 450),
        ('{"budget": {"late_collect_minutes": "0"}}', 0),
        ('{"budget": {"late_collect_minutes": null}}', 120),
        ('{"budget": {}}', 120),
        ('{"budget": {"late_collect_minutes": "soon"}}', 120),
        ("damaged", 120),
    ],
)
def test_a_recipe_s_own_late_collect_minutes_count(recipe_json: str, seconds: float) -> None:
    assert late_collect_s(recipe_json, Settings()) == seconds


def test_the_plan_says_what_it_may_cost(home: Home) -> None:
    planned = home.run("up", recipe(home, 10), "--dry-run")
    assert "kept for a look, 10 minutes and $0.60 at most, never past its timer" in planned.stdout
