"""The shipped smoke recipe at each emulated cloud, from the offer to the meter at rest.

Bought, accepted as four H100, set up, trained on the CPU (which is said), collected, destroyed.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpurun.recipe import load
from provisioners.vast.jobs import fires_at
from tests.cloudruns.scene import Scene, scene
from tests.clouds.boxes import Spec
from tests.clouds.real import CONTAINER, RealBox, RealBoxes
from tests.ssh.packages import packages, use_packages

SMOKE = Path(__file__).parents[2] / "recipes" / "smoke.yaml"
SHOW = "env | grep ^TORCH_CUDA_ARCH_LIST="
MOST_S = 280
GUARDS = {"vast": {"keeper", "fuse", "provider"}, "prime": {"keeper", "fuse"}}


class TrainingBoxes(RealBoxes):
    """As an image made for training: its python3 has what is installed for the tests."""

    def __init__(self) -> None:
        super().__init__(replace(CONTAINER, network="internet", share=packages()))

    def make(self, spec: Spec, api_port: int) -> RealBox:
        made = super().make(spec, api_port)
        use_packages(made.box)
        return made


@pytest.fixture(params=["vast", "prime"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    with scene(request.param, tmp_path / "home", TrainingBoxes()) as made:
        yield made


def sized_for_a_cpu() -> list[str]:
    """What the recipe itself says where there is no GPU; the rest of it is as for four H100."""
    small = load(str(SMOKE), provider="local")
    assert small.data is not None
    assert small.train is not None
    values = {
        "setup.device": "cpu",
        "setup.torch": small.setup.torch,
        "data.build": f"{SHOW} && {small.data.build}",
        "check": small.check,
        "train.run": small.train.run,
    }
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


@pytest.mark.slow
def test_the_smoke_recipe_goes_its_whole_way(stage: Scene) -> None:
    one_guard = ["--accept-one-guard"] if stage.provider == "prime" else []
    words = ["--provider", stage.provider, "--yes", "--json", *one_guard, *sized_for_a_cpu()]
    following = stage.home.start("up", SMOKE, *words)
    run = stage.home.only_run()
    stage.until_phase(run, "train", MOST_S)
    the_timer_is_armed_on_every_guard(stage, run)
    stage.finished(run, MOST_S)
    said, trouble = following.communicate(timeout=60)
    assert following.returncode == 0, trouble + stage.home.logs()
    assert "setup.device is cpu" in trouble, "the plan says what is paid for and not used"
    steps = (stage.home.places.run_dir(run) / "steps.log").read_text()
    assert "[accept] GPUs: 4x NVIDIA H100 80GB HBM3\n" in steps
    assert "\nTORCH_CUDA_ARCH_LIST=9.0\n" in steps, "what the build on the box had"
    assert "data/arc/*/dataset.json: 2 found, 2 expected\n" in steps
    document = json.loads(said)
    assert document["train"]["step"] == document["train"]["total_steps"]
    names = {Path(artifact["path"]).name for artifact in document["artifacts"]}
    assert {"submission.json", "metrics.jsonl", "train.log"} <= names
    outcome = stage.outcome()
    assert (outcome.state, outcome.exit_code, outcome.boxes) == ("done", 0, 1)
    assert outcome.leaked_usd == Decimal("0.00")


def the_timer_is_armed_on_every_guard(stage: Scene, run: str) -> None:
    """As each of them was read back; what Vast holds is asked of Vast."""

    def armed() -> dict[str, Any]:
        guards = stage.look(run)["guards"]
        return {guard["name"]: guard for guard in guards if guard["state"] == "armed"}

    stage.until(lambda: set(armed()) >= GUARDS[stage.provider])
    timer = stage.last["timer"]
    assert timer["kind"] == "run"
    assert {guard["seq"] for guard in armed().values()} == {timer["seq"]}
    if stage.provider == "vast":
        [job] = stage.jobs()
        assert (job.method, job.endpoint.split("/")[-2]) == ("DELETE", stage.last["instance_id"])
        hour = job.start.replace(minute=0, second=0, microsecond=0)
        assert hour == fires_at(datetime.fromisoformat(timer["ends_at"]))
