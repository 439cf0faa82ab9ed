"""Whole runs whose training hangs, fails or is done early: what is kept, said and exited with."""

import json
from pathlib import Path

from gpurun.locks import holder
from tests.homes import Home
from tests.test_crashes import kill_driver

SAYS = """\
mkdir -p out; echo 42 > out/result.txt; echo '{"step": 1, "acc": 0.1}' > out/metrics.jsonl
"""
STANDS = "while :; do sleep 0.1; done"


def recipe(home: Home, train: str, **watch: str) -> Path:
    path = home.recipe(train=train)
    lines = "".join(f"\n  {key}: {value}" for key, value in watch.items())
    metrics = "  metrics: out/metrics.jsonl"
    path.write_text(path.read_text().replace(metrics, metrics + lines))
    return path


def moved(home: Home, run: str) -> str:
    """When its last step was, as the journal has it for the next driver."""
    journal = home.journal()
    at = str(journal.runs.progress_of(run)["kept"]["moved_at"])
    journal.close()
    return at


def test_a_training_that_hangs_fails_with_evidence_artifacts_and_a_verdict(home: Home) -> None:
    path = recipe(home, SAYS + STANDS, hang_minutes="0.1")
    done = home.run("up", path, "--yes", "--json")
    assert done.returncode == 5, done.stderr + home.logs()
    document = json.loads(done.stdout)
    assert (document["state"], document["verdict"]["cause"]) == ("failed", "hang")
    assert "no step for 0.1 minutes" in document["error"]
    assert "faulthandler.register" in document["error"]
    evidence = Path(document["verdict"]["evidence"])
    assert "hrtimer_nanosleep" in (evidence / "stacks.txt").read_text()
    assert {Path(a["path"]).name for a in document["artifacts"]} >= {"result.txt"}
    assert document["destroyed_at"]
    assert home.box_processes() == []


def test_a_training_that_fails_says_why_in_one_sentence(home: Home) -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.44 GiB."
    run = home.up(home.recipe(train=f"mkdir -p out; echo '{text}'; exit 1"))
    home.until_finished(run)
    document = home.document(run)
    assert (document["exit_code"], document["verdict"]["cause"]) == (5, "gpu-memory")
    assert "A GPU ran out of memory." in document["error"] and text in document["error"]
    assert "gpu-memory" in home.run("status").stdout
    assert "use a smaller batch" in home.run("status", run).stdout.lower()


def test_a_rule_that_holds_ends_the_run_as_done(home: Home) -> None:
    better = SAYS + 'sleep 1; echo \'{"step": 2, "acc": 0.9}\' >> out/metrics.jsonl\n' + STANDS
    done = home.run("up", recipe(home, better, stop_when="acc > 0.5"), "--yes", "--json")
    assert done.returncode == 0, done.stderr + home.logs()
    document = json.loads(done.stdout)
    assert (document["state"], document["verdict"]) == ("done", None)
    assert document["train"]["step"] == 2


def test_a_hang_is_called_in_time_though_its_driver_was_killed(home: Home) -> None:
    path = recipe(home, SAYS + STANDS, hang_minutes="0.2")
    run = home.up(path)
    home.until(lambda: home.document(run)["train"]["step"] == 1, 60)
    moved_at = moved(home, run)
    kill_driver(home, run)
    home.until(lambda: holder(home.places.run_lock(run)) is not None, 60)
    home.until_finished(run)
    assert moved(home, run) == moved_at
    document = home.document(run)
    assert (document["state"], document["verdict"]["cause"]) == ("failed", "hang"), home.logs()
