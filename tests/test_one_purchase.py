"""Who never buys, and what is bought while a run begins to end."""

import json
from dataclasses import replace

from gpurun.clock import SystemClock
from gpurun.model import Ending, Run
from gpurun.recipe import load
from tests.homes import WAITS, Home
from tests.stories import Story, journal_at
from tests.test_faults import creates, faults, flaky

__all__ = ["flaky"]

LONG_S = 240


def begun(home: Home) -> Story:
    """A run in the journal that no driver has."""
    clock = SystemClock()
    path = home.recipe()
    recipe = load(str(path), provider="flaky")
    story = Story(journal_at(home.places.root, clock), clock, provider="flaky")
    run: Run = replace(
        story.run(),
        recipe_json=json.dumps(recipe.to_dict()),
        recipe_dir=str(path.parent),
        runs_dir=str(home.work / "runs"),
    )
    story.journal.runs.add(run)
    return story


def test_a_takeover_of_a_run_that_has_bought_nothing_buys_nothing(flaky: Home) -> None:
    """The keeper starts a driver for it, which ends it."""
    story = begun(flaky)
    assert flaky.run("keeper", "start").returncode == 0
    flaky.until_finished(story.run_id, LONG_S)
    document = flaky.document(story.run_id)
    assert document["state"] == "failed"
    assert "a takeover never rents" in document["error"]
    assert creates(flaky) == []


def test_a_box_whose_answer_comes_after_the_kill_is_known_and_ended(flaky: Home) -> None:
    faults(flaky, "create_waits")
    run = flaky.up(flaky.recipe(train=WAITS), "--provider", "flaky")
    flaky.until(lambda: len(creates(flaky)) == 1, LONG_S)
    killing = flaky.start("kill", run, "--yes")
    journal = flaky.journal()
    flaky.until(lambda: journal.runs.get(run).ending is Ending.KILL, LONG_S)
    faults(flaky)
    flaky.until_finished(run, LONG_S)
    killing.communicate(timeout=LONG_S)
    document = flaky.document(run)
    assert (document["state"], document["exit_code"]) == ("killed", 7), flaky.logs()
    assert document["instance_id"], "by the answer to create, or from a list"
    assert document["receipt"]["gone_at"]
    assert len(creates(flaky)) == 1
    assert flaky.box_processes() == []
    journal.close()


def test_a_failed_run_that_may_still_bill_is_exit_10_and_5_only_once_it_is_gone(
    flaky: Home,
) -> None:
    faults(flaky, "destroy_lies")
    run = flaky.up(flaky.recipe(train="exit 3"), "--provider", "flaky")
    flaky.until(lambda: flaky.document(run)["state"] == "still_billing", LONG_S)
    assert flaky.document(run)["exit_code"] == 10
    faults(flaky)
    flaky.until_finished(run, LONG_S)
    document = flaky.document(run)
    assert (document["state"], document["exit_code"]) == ("failed", 5)
