"""A run is taken over where its recipe's secrets are not set (F54)."""

import os
import signal
from pathlib import Path

import pytest

from gpurun.locks import holder
from tests.homes import BUILD, WAITS, Home

pytestmark = pytest.mark.timeout(900)

GOES_ON = 'mkdir -p out; until [ -e "$GO" ]; do sleep 0.1; done; echo 42 > out/result.txt'


def begun(home: Home, *, build: str, train: str) -> str:
    """A run whose recipe wants a secret, which only the shell of `up` has; its id."""
    recipe = home.recipe(build=build, train=train, setup_minutes=30, run_minutes=30)
    recipe.write_text(recipe.read_text() + "secrets:\n  - name: TOKEN\n")
    home.env["TOKEN"] = "hunter2"
    run = home.up(recipe)
    del home.env["TOKEN"]
    return run


def taken_over(home: Home, run: str) -> None:
    """By a driver of a keeper that the secret was never told."""
    pid = holder(home.places.run_lock(run))
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # neither starts the other again, with all that it knows
    home.kill_keeper()
    os.kill(pid, signal.SIGKILL)
    assert home.run("keeper", "start").returncode == 0
    home.until(lambda: holder(home.places.run_lock(run)) not in (None, pid), 120)


def test_a_training_that_was_not_launched_ends_and_says_what_is_missing(
    home: Home, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    run = begun(home, build=f"until [ -e {go} ]; do sleep 0.1; done; {BUILD}", train=WAITS)
    home.until_phase(run, "data", 180)
    taken_over(home, run)
    go.touch()
    home.until_finished(run, 180)
    document = home.document(run)
    assert (document["state"], document["exit_code"]) == ("failed", 5), home.logs()
    assert "secret TOKEN is not set here; the box is ended" in document["error"]
    assert home.box_processes() == []


def test_a_training_that_has_its_secrets_goes_on(home: Home, tmp_path: Path) -> None:
    go = tmp_path / "go"
    run = begun(home, build=BUILD, train=GOES_ON.replace("$GO", str(go)))
    home.until_phase(run, "train", 180)
    home.until(lambda: bool(list(home.places.boxes.rglob("train.started"))), 120)
    taken_over(home, run)
    go.touch()
    home.until_finished(run, 180)
    assert home.document(run)["state"] == "done", home.logs()
