"""The steps of a run, compared as data; and the few that are worth running in a real shell."""

from pathlib import Path

import pytest

from gpurun.phases import ORDER, PHASES, Command, Detached, Facts, Files, Upload, locked
from gpurun.recipe import Recipe, load
from gpurun.shell.local import LocalShell

FACTS = Facts(bundle_sha256="ab12", label="gpurun-o-r-n", run_id="r", torch_cpu_index="https://cpu")
TEXT = """\
name: steps
need: {gpu: none}
budget: {max_usd_per_hour: 1, max_usd: 1, setup_minutes: 2, run_minutes: 1}
setup: {device: cpu, apt: [git], pip: [numpy], torch: "2.13.0"}
env: {GREETING: it's me}
data: {build: make data, path: data, verify: {files: {"*/dataset.json": 2}, run: check it}}
check: try it
train: {run: train it}
collect: [out]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    path = tmp_path / "steps.yaml"
    path.write_text(TEXT)
    return load(str(path), provider="local")


@pytest.fixture
def shell(tmp_path: Path) -> LocalShell:
    root = tmp_path / "root"
    root.mkdir()
    return LocalShell(root, env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(root)})


def test_a_run_is_these_steps_in_this_order(recipe: Recipe) -> None:
    steps = [
        (phase, type(step), str(step))
        for phase in ORDER
        if phase in PHASES
        for step in PHASES[phase](recipe, FACTS)
    ]
    assert steps == [
        ("ship", Upload, "upload the bundle ab12"),
        ("ship", Command, "write the environment of the commands"),
        ("setup", Command, "apt: git"),
        ("setup", Command, "make a virtual environment"),
        ("setup", Command, "pip: numpy"),
        ("setup", Command, "torch 2.13.0 for cpu"),
        ("data", Command, "make data"),
        ("verify", Files, "data/*/dataset.json matches 2 files"),
        ("verify", Command, "check it"),
        ("verify", Command, "try it"),
        ("train", Detached, "launch, detached: train it"),
    ]


def test_the_timer_of_the_training_is_armed_after_the_dataset_is_verified() -> None:
    assert ORDER.index("verify") < ORDER.index("arm") < ORDER.index("train")


def test_no_step_of_the_setup_may_outlast_the_setup_timer(recipe: Recipe) -> None:
    for phase in ("setup", "data", "verify"):
        for step in PHASES[phase](recipe, FACTS):
            assert not isinstance(step, Command) or step.timeout_s <= 120


def test_without_packages_no_environment_is_made(recipe: Recipe) -> None:
    bare = recipe.model_copy(
        update={"setup": recipe.setup.model_copy(update={"apt": [], "pip": [], "torch": None})}
    )
    assert list(PHASES["setup"](bare, FACTS)) == []


def test_every_later_command_has_the_recipes_environment(recipe: Recipe, shell: LocalShell) -> None:
    _, write = PHASES["ship"](recipe, FACTS)
    assert isinstance(write, Command)
    assert shell.run(locked(write.text), timeout_s=10).ok
    told = shell.run(locked('echo "$GREETING/$GPURUN_RUN/$GPURUN_GPUS"'), timeout_s=10)
    assert told.output == "it's me/r/1\n"
    assert (shell.root / ".gpurun" / "collect.txt").read_text() == "out\n"


def test_a_step_fails_when_any_line_of_it_fails(shell: LocalShell) -> None:
    result = shell.run(locked("echo one\nfalse\necho two"), timeout_s=10)
    assert (result.exited, result.output) == (1, "one\n")


def test_a_step_waits_for_one_that_a_dead_driver_left_running(shell: LocalShell) -> None:
    left = "(trap '' HUP; sleep 1; echo first >> order) >/dev/null 2>&1"
    holding = shell.run(f"({locked(left)}) </dev/null >/dev/null 2>&1 & sleep 0.3", timeout_s=10)
    assert holding.ok
    assert shell.run(locked("echo second >> order"), timeout_s=10).ok
    assert (shell.root / "order").read_text() == "first\nsecond\n"
