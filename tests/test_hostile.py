"""Trainings that say nonsense, ignore SIGTERM or change what is fetched: no bug, nothing lost."""

import json
import os
import signal
from pathlib import Path

from gpurun import keeper
from tests.homes import WAITS, Home

NONSENSE = [
    '{"step": 1, "total_steps": 100, "it_per_s": 1e-10}',
    '{"step": 1, "total_steps": 100, "it_per_s": "fast"}',
    '{"step": NaN, "loss": NaN, "it_per_s": Infinity}',
    '{"step": 1e300, "total_steps": "many", "loss": [1]}',
    "[" * 100_000,
    "not json at all",
]


def test_nonsense_in_the_metrics_neither_ends_the_training_nor_blinds_us(home: Home) -> None:
    (home.work / "nonsense").write_text("\n".join(NONSENSE) + "\n")
    train = f"mkdir -p out; cp {home.work}/nonsense out/metrics.jsonl\n"
    run = home.up(home.recipe(train=train + "sleep 4; echo 42 > out/result.txt"))
    home.until_phase(run, "train")
    home.until(lambda: bool(home.document(run)["train"]))
    for words in (("status",), ("status", run, "--json"), ("report", run)):
        done = home.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "NaN" not in done.stdout
    home.until_finished(run)
    assert home.document(run)["state"] == "done", home.logs()


def test_a_training_that_ignores_sigterm_and_writes_on_loses_nothing_else(home: Home) -> None:
    train = "mkdir -p out; echo precious > out/model.pt; echo 42 > out/result.txt\n"
    train += 'trap "" TERM; while :; do echo x >> out/metrics.log; sleep 0.01; done'
    recipe = home.recipe(train=train, run_minutes=0.08, grace_minutes=0.15)
    done = home.run("up", recipe, "--yes", "--json")
    assert done.returncode == 6, done.stderr + home.logs()
    names = {Path(artifact["path"]).name for artifact in json.loads(done.stdout)["artifacts"]}
    assert {"model.pt", "result.txt", "metrics.log"} <= names


def test_a_driver_looks_after_its_keeper(home: Home) -> None:
    """Detached, both keeper processes killed, and nobody types a command."""
    run = home.up(home.recipe(train=WAITS, run_minutes=0.5, grace_minutes=0.1))
    home.until_phase(run, "train")
    home.kill_keeper()
    home.until(lambda: keeper.running(home.places) is not None, 30)
    home.until_finished(run)
    assert home.document(run)["state"] == "deadline"
    assert home.document(run)["collected_at"]


def test_a_stopped_driver_is_woken_to_collect(home: Home) -> None:
    run = home.up(home.recipe(train=WAITS, run_minutes=0.15, grace_minutes=0.2))
    home.until_phase(run, "train")
    pid = home.journal().runs.driver_pid(run)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    home.until_finished(run)
    assert home.document(run)["collected_at"], home.logs()


def test_artifacts_that_cannot_be_written_are_found_before_anything_is_rented(home: Home) -> None:
    (home.work / "runs").touch()
    done = home.run("up", home.recipe(), "--yes")
    assert done.returncode == 2
    assert "artifacts cannot be written" in done.stderr
    assert not list(home.places.boxes.glob("gpurun-*"))


def test_kill_works_with_a_broken_configuration_file(home: Home) -> None:
    run = home.up(home.recipe(train=WAITS))
    home.until_phase(run, "train")
    (home.root / "config.toml").write_text("this is = not [ toml")
    done = home.run("kill", run, "--yes", "--no-collect")
    assert done.returncode == 0, done.stderr
    home.until_finished(run)
    assert home.box_processes() == []
