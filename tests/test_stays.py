"""A box without `train:` stays: one recipe after another runs on it, until timer or kill."""

import json
from pathlib import Path

from tests.homes import Home

HOLDS = """\
name: desk
need: {gpu: none, disk_gb: 1}
providers: local
budget: {max_usd_per_hour: 10, max_usd: 10, setup_minutes: 5, run_minutes: 5, grace_minutes: 0.2}
setup: {device: cpu}
collect: [notes]
"""


def desk(home: Home) -> str:
    path = home.work / "desk.yaml"
    path.write_text(HOLDS)
    run = home.up(path)
    home.until_phase(run, "train")
    return run


def on(home: Home, run: str, recipe: Path) -> tuple[int, str]:
    done = home.run("up", recipe, "--on", run, "--json")
    assert done.stdout, done.stderr + home.logs()
    return done.returncode, json.loads(done.stdout)["task"]["reason"]


def test_recipes_run_one_after_another_and_the_box_stays(home: Home) -> None:
    run = desk(home)
    root = home.places.boxes
    first = home.recipe(name="first", train="mkdir -p out; echo 1 >> out/result.txt")
    assert on(home, run, first) == (0, "first finished")
    broken = home.recipe(name="broken", train="echo no; exit 3")
    code, reason = on(home, run, broken)
    assert code == 5
    assert "exited 3" in reason
    assert on(home, run, first)[0] == 0
    [result] = root.glob("*/root/out/result.txt")
    assert result.read_text() == "1\n1\n"  # the same box, the training launched again
    document = home.document(run)
    assert (document["state"], document["task"]["number"]) == ("active", 3)
    assert (home.work / "runs" / run / "out" / "result.txt").read_text() == "1\n1\n"


def test_what_was_set_up_is_not_set_up_again(home: Home) -> None:
    run = desk(home)
    recipe = home.recipe(name="twice", build="echo x >> builds; mkdir -p data/a data/b;"
                         " touch data/a/dataset.json data/b/dataset.json",
                         train="mkdir -p out; cp builds out/result.txt")  # fmt: skip
    for _ in range(2):
        assert on(home, run, recipe)[0] == 0, home.logs()
    fetched = home.work / "runs" / run / "out" / "result.txt"
    assert fetched.read_text().count("x") == 1


def test_its_timer_ends_it_and_what_lies_there_is_collected(home: Home) -> None:
    run = desk(home)
    done = home.run("ssh", run, "--", "echo", "found", ">", "notes")
    assert done.returncode == 0, done.stderr
    home.run("kill", run, "--yes")
    home.until_finished(run)
    assert (home.work / "runs" / run / "notes").read_text() == "found\n"


def test_a_box_that_is_at_work_takes_no_other_recipe(home: Home) -> None:
    run = desk(home)
    waits = home.recipe(name="waits", train="until [ -e go ]; do sleep 0.1; done; mkdir -p out;"
                        " echo 42 > out/result.txt")  # fmt: skip
    begun = home.run("up", waits, "--on", run, "-d")
    assert begun.returncode == 0, begun.stderr
    refused = home.run("up", waits, "--on", run)
    assert refused.returncode == 2
    assert "is at work" in refused.stderr


def test_of_two_commands_at_once_one_gets_the_box(home: Home) -> None:
    run = desk(home)
    waits = "until [ -e go ]; do sleep 0.1; done; mkdir -p out; echo 42 > out/result.txt"
    recipes = [home.recipe(name=name, train=waits) for name in ("one", "other")]
    racing = [home.start("up", recipe, "--on", run, "-d") for recipe in recipes]
    said = [each.communicate()[1] for each in racing]
    assert sorted(each.returncode for each in racing) == [0, 2], said
    [number] = {home.document(run)["task"]["number"]}
    assert number == 1


def test_a_run_that_ends_its_own_box_takes_no_other(home: Home) -> None:
    run = home.up(home.recipe(train="until [ -e go ]; do sleep 0.1; done"))
    home.until_phase(run, "train")
    refused = home.run("up", home.recipe(name="other"), "--on", run)
    assert refused.returncode == 2
    assert "is ended when its training ends" in refused.stderr
