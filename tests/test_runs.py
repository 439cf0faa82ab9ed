"""Whole runs on the provider `local`, driven through the real command."""

import json
from decimal import Decimal
from pathlib import Path

from tests.homes import BUILD, WAITS, Home


def test_a_run_goes_its_whole_way_and_the_bill_sums_to_the_cent(home: Home) -> None:
    done = home.run("up", home.recipe(), "--yes", "--json")
    assert done.returncode == 0, done.stderr + home.logs()
    document = json.loads(done.stdout)
    assert document["state"] == "done"
    assert document["timer"] is None
    assert document["destroyed_at"]
    phases = [phase["name"] for phase in document["phases"]]
    assert phases == [
        "rent",
        "boot",
        "accept",
        "ship",
        "setup",
        "data",
        "verify",
        "arm",
        "train",
        "collect",
        "destroy",
    ]
    assert sum(Decimal(phase["usd"]) for phase in document["phases"]) == Decimal(
        document["spent_usd"]
    ).quantize(Decimal("0.01"))
    fetched = {Path(artifact["path"]).name: artifact for artifact in document["artifacts"]}
    assert Path(fetched["result.txt"]["path"]).read_text() == "42\n"
    assert home.box_processes() == []
    assert not list(home.places.boxes.glob("gpurun-*"))


def test_without_yes_and_without_a_terminal_nothing_is_rented(home: Home) -> None:
    done = home.run("up", home.recipe())
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert not home.places.boxes.exists()


def test_a_budget_below_the_offer_rents_nothing(home: Home) -> None:
    home.env["GPURUN_LOCAL_USD_PER_HOUR"] = "11"
    done = home.run("up", home.recipe(), "--yes")
    assert done.returncode == 3
    assert "max_usd_per_hour" in done.stderr
    assert not home.places.boxes.exists()


def test_a_budget_that_cannot_pay_the_setup_rents_nothing(home: Home) -> None:
    done = home.run("up", home.recipe(), "--yes", "--max-usd", "0.01")
    assert done.returncode == 3
    assert "max_usd" in done.stderr
    assert not home.places.boxes.exists()


def test_an_incomplete_dataset_stops_before_the_run_timer_and_the_training(home: Home) -> None:
    recipe = home.recipe(build="mkdir -p data/train; touch data/train/dataset.json")
    done = home.run("up", recipe, "--yes", "--json")
    assert done.returncode == 5
    document = json.loads(done.stdout)
    assert "matches 1 files" in document["error"]
    assert "expects 2" in document["error"]
    assert "train" not in [phase["name"] for phase in document["phases"]]
    journal = home.journal()
    attempt = journal.attempts.of_run(document["id"])[0]
    assert "run" not in journal.timers.kinds(attempt.label)
    assert home.box_processes() == []


def test_a_training_that_fails_is_shown_collected_and_destroyed(home: Home) -> None:
    train = "mkdir -p out; echo half > out/result.txt\n"
    train += "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo line $i; done; exit 7"
    done = home.run("up", home.recipe(train=train), "--yes", "--json")
    assert done.returncode == 5
    document = json.loads(done.stdout)
    assert "exited 7" in document["error"]
    assert "line 12" in document["error"]
    assert "line 3\n" in document["error"]
    assert "line 2\n" not in document["error"]
    names = [Path(artifact["path"]).name for artifact in document["artifacts"]]
    assert "result.txt" in names
    assert home.box_processes() == []


def test_a_training_that_leaves_nothing_expected_has_failed(home: Home) -> None:
    done = home.run("up", home.recipe(train="echo nothing made"), "--yes", "--json")
    assert done.returncode == 5
    assert "train.expect" in json.loads(done.stdout)["error"]


def test_kill_collects_first_and_the_run_is_killed(home: Home) -> None:
    run = home.up(home.recipe(train=WAITS))
    home.until_phase(run, "train")
    home.until(lambda: bool(home.box_processes()))
    done = home.run("kill", run, "--yes")
    assert done.returncode == 0, done.stderr + home.logs()
    home.until_finished(run)
    document = home.document(run)
    assert (document["state"], document["exit_code"]) == ("killed", 7)
    assert document["collected_at"]
    assert home.box_processes() == []
    again = home.run("kill", run, "--yes")
    assert again.returncode == 0
    assert "already killed" in again.stdout + again.stderr


def test_kill_without_collecting_ends_the_processes_at_once(home: Home) -> None:
    run = home.up(home.recipe(train=WAITS))
    home.until_phase(run, "train")
    killing = home.start("kill", run, "--yes", "--no-collect")
    home.until(lambda: home.box_processes() == [], within_s=10)
    assert killing.wait(60) == 0
    killing.communicate()
    home.until_finished(run)
    assert home.document(run)["state"] == "killed"


def test_kill_of_an_unknown_run_is_a_usage_error(home: Home) -> None:
    done = home.run("kill", "nosuchrun", "--yes")
    assert done.returncode == 2
    assert "nosuchrun" in done.stderr


def test_the_timer_ends_a_training_that_would_run_on(home: Home) -> None:
    recipe = home.recipe(train=WAITS, run_minutes=0.05, grace_minutes=0.05)
    done = home.run("up", recipe, "--yes", "--json")
    assert done.returncode == 6, done.stderr + home.logs()
    document = json.loads(done.stdout)
    assert document["state"] == "deadline"
    assert document["collected_at"]
    assert home.box_processes() == []


def test_the_setup_timer_ends_a_setup_that_hangs(home: Home) -> None:
    recipe = home.recipe(build="sleep 600", setup_minutes=0.05)
    done = home.run("up", recipe, "--yes", "--json")
    assert done.returncode == 6, done.stderr + home.logs()
    assert home.box_processes() == []


def test_extend_moves_the_timer_and_is_refused_beyond_the_budget(home: Home) -> None:
    run = home.up(home.recipe(train=WAITS, run_minutes=1))
    home.until_phase(run, "train")
    before = home.document(run)["timer"]
    done = home.run("extend", run, "10m", "--yes")
    assert done.returncode == 0, done.stderr
    after = home.document(run)["timer"]
    assert after["seq"] > before["seq"]
    assert after["ends_at"] > before["ends_at"]
    refused = home.run("extend", run, "9h", "--yes")
    assert refused.returncode == 3
    assert home.document(run)["timer"]["seq"] == after["seq"]
    assert home.document(run)["timer"]["ends_at"] == after["ends_at"]
    home.run("kill", run, "--yes", "--no-collect")
    home.until_finished(run)


def test_two_runs_at_once_do_not_disturb_each_other(home: Home) -> None:
    recipes = [home.recipe(name=name) for name in ("one", "two")]
    runs = [home.up(recipe) for recipe in recipes]
    for run in runs:
        home.until_finished(run)
        assert home.document(run)["state"] == "done", home.logs()
    assert len(set(runs)) == 2


def test_a_secret_reaches_the_training_and_nothing_else(home: Home) -> None:
    recipe = home.recipe(train='mkdir -p out; printf %s "$TOKEN" | wc -c > out/result.txt')
    recipe.write_text(recipe.read_text() + "secrets:\n  - name: TOKEN\n")
    refused = home.run("up", recipe, "--yes")
    assert refused.returncode == 2
    assert "TOKEN" in refused.stderr
    home.env["TOKEN"] = "s3cret-value-of-a-key"
    done = home.run("up", recipe, "--yes", "--json")
    assert done.returncode == 0, done.stderr + home.logs()
    document = json.loads(done.stdout)
    result = next(a["path"] for a in document["artifacts"] if a["path"].endswith("result.txt"))
    assert int(Path(result).read_text()) == len(home.env["TOKEN"])
    assert "s3cret" not in done.stdout + done.stderr
    for path in home.places.root.rglob("*"):
        if path.is_file():
            assert b"s3cret" not in path.read_bytes(), path


def test_the_report_says_what_each_step_took(home: Home) -> None:
    done = home.run("up", home.recipe(build=f"sleep 1; {BUILD}"), "--yes")
    assert done.returncode == 0, done.stderr
    report = json.loads(home.run("report", home.last_run(), "--json").stdout)
    steps = [event["detail"] for event in report["events"] if event["what"] == "step"]
    [built] = [step for step in steps if step.startswith("data: sleep 1")]
    assert 1 <= float(built.split()[-2]) < 60
