"""A provider that loses answers, lies and fails: one create per label, nothing forgotten.

The provider is a plugin, found by its entry point, as one of another package would be.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.homes import WAITS, Home

PLUGINS = Path(__file__).parent / "plugins"
LOUD_S = 100  # a box that is not proven gone is "still billing" after a minute


@pytest.fixture
def flaky(home: Home) -> Iterator[Home]:
    home.env["PYTHONPATH"] = os.pathsep.join([str(PLUGINS), os.environ.get("PYTHONPATH", "")])
    home.places.ensure()
    yield home
    faults(home)


def faults(home: Home, *names: str) -> None:
    path = home.places.root / "faults.json"
    path.with_suffix(".new").write_text(json.dumps(dict.fromkeys(names, True)))
    path.with_suffix(".new").replace(path)


def creates(home: Home) -> list[str]:
    path = home.places.root / "creates"
    return path.read_text().split() if path.exists() else []


def start(home: Home, train: str = WAITS) -> str:
    run = home.up(home.recipe(train=train), "--provider", "flaky")
    home.until_phase(run, "train")
    return run


def test_a_provider_of_another_package_is_found_and_its_run_goes_the_whole_way(
    flaky: Home,
) -> None:
    assert "flaky" in flaky.run("offers").stdout
    done = flaky.run("up", flaky.recipe(), "--provider", "flaky", "--yes", "--json")
    assert done.returncode == 0, done.stderr + flaky.logs()
    assert len(creates(flaky)) == 1


def test_a_box_whose_answer_was_lost_is_found_by_its_label(flaky: Home) -> None:
    faults(flaky, "answer_is_lost")
    done = flaky.run("up", flaky.recipe(), "--provider", "flaky", "--yes", "--json")
    assert done.returncode == 0, done.stderr + flaky.logs()
    assert len(creates(flaky)) == 1
    assert flaky.box_processes() == []


def test_a_request_that_was_lost_is_never_sent_again(flaky: Home) -> None:
    faults(flaky, "request_is_lost")
    done = flaky.run("up", flaky.recipe(), "--provider", "flaky", "--yes", timeout_s=200)
    assert done.returncode == 4, done.stderr + flaky.logs()
    assert "never appeared" in done.stderr
    assert len(creates(flaky)) == 1


def test_a_refused_offer_rents_nothing(flaky: Home) -> None:
    faults(flaky, "refuses")
    done = flaky.run("up", flaky.recipe(), "--provider", "flaky", "--yes")
    assert done.returncode == 4, done.stderr + flaky.logs()
    assert len(creates(flaky)) == 1
    assert not flaky.journal().attempts.live()


def test_a_provider_that_cannot_be_listed_is_not_bought_from(flaky: Home) -> None:
    faults(flaky, "list_fails")
    done = flaky.run("up", flaky.recipe(), "--provider", "flaky", "--yes")
    assert done.returncode == 4
    assert "no answer to the list" in done.stderr
    assert creates(flaky) == []


def test_a_destroy_that_lies_is_still_billing_until_it_is_proven(flaky: Home) -> None:
    run = start(flaky, train="mkdir -p out; echo 42 > out/result.txt; sleep 1")
    faults(flaky, "destroy_lies")
    journal = flaky.journal()
    flaky.until(lambda: journal.runs.get(run).state == "still_billing", LOUD_S)
    assert flaky.document(run)["exit_code"] == 10
    faults(flaky)
    flaky.until_finished(run)
    assert flaky.document(run)["state"] == "done"


def test_an_empty_list_alone_never_calls_a_box_gone(flaky: Home) -> None:
    run = start(flaky)
    faults(flaky, "list_is_empty", "destroy_lies")
    killing = flaky.start("kill", run, "--yes", "--no-collect")
    flaky.until(lambda: "is still listed" in flaky.logs(), 40)
    assert flaky.document(run)["timer"] is not None
    faults(flaky)
    flaky.until_finished(run)
    assert killing.wait(30) == 0
    killing.communicate()
    assert flaky.box_processes() == []


def test_what_another_account_says_is_no_evidence(flaky: Home) -> None:
    run = start(flaky)
    faults(flaky, "another_account")
    killing = flaky.start("kill", run, "--yes", "--no-collect")
    flaky.until(lambda: "answers for account another" in flaky.logs(), 40)
    assert flaky.document(run)["timer"] is not None
    assert flaky.box_processes() != []
    faults(flaky)
    flaky.until_finished(run)
    assert killing.wait(30) == 0
    killing.communicate()
