"""Trainings on a box with GPUs that are stopped early: idle, hanging, or good enough."""

import json
from collections.abc import Callable

from tests.boxes import box
from tests.boxes.shape import H100X4
from tests.hosts import Hosts, left_on
from tests.ssh import table
from tests.ssh.conftest import Keep

GPUS = ("--set", "need.gpu=H100", "--set", "need.gpu_count=4")
STEPS = "mkdir -p out; echo 42 > out/result.txt; i=0; while :; do i=$((i + 1)); sleep 0.5\n"
STEPS += 'echo "{\\"step\\": $i, \\"ARC/pass@1\\": $i}" >> out/metrics.jsonl; done'
STANDS = "mkdir -p out; echo 42 > out/result.txt; echo '{\"step\": 1}' > out/metrics.jsonl\n"
STANDS += "while :; do sleep 0.2; done"


def test_gpus_that_nobody_uses_end_the_run_with_evidence(
    hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    with box(H100X4) as machine:
        home = hosts_of(machine)
        done = home.go(home.recipe(train=STEPS), *GPUS, "--set", "budget.idle_minutes=0.05")
        document = json.loads(done.stdout)
        keep(table.of_run("4x H100", "GPUs idle", document))
        assert done.returncode == 5
        assert "every GPU was under 5 %" in document["error"]
        assert any((home.work / "runs" / document["id"] / "evidence").rglob("*"))
        assert home.fetched(document["id"], "out/result.txt") == "42\n"
        assert left_on(machine) == []


def test_gpus_at_full_tilt_and_little_power_without_a_step_are_a_collective_that_hangs(
    hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    with box(H100X4) as machine:
        machine.gpus.set(util_percent=100, power_w=120.0)
        home = hosts_of(machine)
        done = home.go(home.recipe(train=STANDS), *GPUS, "--set", "watch.hang_minutes=0.05")
        document = json.loads(done.stdout)
        keep(table.of_run("4x H100", "hang, 100 % at low power", document))
        assert done.returncode == 5
        assert "the training hangs" in document["error"]
        assert "collective" in document["error"]
        assert (home.work / "runs" / document["id"] / "evidence").is_dir()
        assert left_on(machine) == []


def test_a_metric_that_is_good_enough_ends_the_run_as_done(
    hosts_of: Callable[..., Hosts], keep: Keep
) -> None:
    with box(H100X4) as machine:
        machine.gpus.set(util_percent=97, power_w=640.0)
        home = hosts_of(machine)
        rule = "watch.stop_when=ARC/pass@1 > 3"
        done = home.go(home.recipe(train=STEPS), *GPUS, "--set", rule)
        document = json.loads(done.stdout)
        keep(table.of_run("4x H100", "stop_when holds", document))
        assert done.returncode == 0, done.stderr + home.logs()
        assert document["reason"] == "stopped because ARC/pass@1 > 3"
        assert left_on(machine) == []
