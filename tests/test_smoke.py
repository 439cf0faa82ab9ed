"""The shipped smoke recipe: the whole way for real, and a loss that falls because it learns."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpurun.recipe import load
from tests.homes import Home

SMOKE = Path(__file__).parent.parent / "recipes" / "smoke.yaml"
LEAST_STEPS = 20


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_smoke_recipe_trains_on_real_data_and_brings_its_results_home(home: Home) -> None:
    home.env["GPURUN_LOCAL_USD_PER_HOUR"] = "0.60"
    done = home.run("up", SMOKE, "--yes", "--json", timeout_s=580)
    assert done.returncode == 0, done.stderr + home.logs()
    document = json.loads(done.stdout)
    assert document["state"] == "done"
    artifacts = {Path(artifact["path"]).name: artifact for artifact in document["artifacts"]}
    assert json.loads(Path(artifacts["submission.json"]["path"]).read_text())
    lines = Path(artifacts["metrics.jsonl"]["path"]).read_text().splitlines()
    steps = [line["step"] for line in map(json.loads, lines) if "loss" in line]
    assert len(steps) >= LEAST_STEPS
    assert any("/step_" in artifact["path"] for artifact in document["artifacts"])
    assert document["train"]["step"] == document["train"]["total_steps"]
    assert home.box_processes() == []


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the smoke's box has it: the training package and the dataset."""
    root = tmp_path_factory.mktemp("box")
    (root / "remote").symlink_to(SMOKE.parent.parent / "remote")
    recipe = load(str(SMOKE), provider="local")
    assert recipe.data is not None
    assert recipe.data.build is not None
    run(root, recipe.data.build)
    return root


def run(root: Path, command: str) -> int:
    """A command of the recipe, with the python of the tests as the box's."""
    python = f'python() {{ {sys.executable} "$@"; }}\n'
    done = subprocess.run(
        ["sh", "-c", python + command],
        cwd=root,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout[-2000:], done.stderr[-2000:])
    return done.returncode


def train(root: Path, name: str, *overrides: str) -> int:
    """The recipe's own training and loss check, without the evaluation."""
    recipe = load(str(SMOKE), provider="local")
    assert recipe.train is not None
    command = recipe.train.run.replace("checkpoints/smoke", f"checkpoints/{name}")
    training, check = command.split("&&")
    return run(
        root, f"{training} evaluators=[] min_eval_interval=1000 {' '.join(overrides)} && {check}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_loss_of_the_smoke_falls_on_each_seed(box: Path, seed: int) -> None:
    assert train(box, f"seed{seed}", f"seed={seed}") == 0


@pytest.mark.slow
def test_the_loss_check_fails_when_nothing_is_learnt(box: Path) -> None:
    assert train(box, "still", "lr=0") != 0
