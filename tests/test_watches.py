"""Trainings that no process of their own watches: the keeper does, and calls a driver if needed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.locks import holder
from tests.boxes import Box, box
from tests.hosts import Hosts, left_on, run_root

pytestmark = pytest.mark.box
STEPS = """\
mkdir -p out; echo 42 > out/result.txt; step=0
until [ -e go ]; do
  step=$((step + 1)); echo "{\\"step\\": $step, \\"total_steps\\": 9999}" >> out/metrics.jsonl
  sleep 0.5
done
"""


@pytest.fixture
def host() -> Iterator[Box]:
    with box() as machine:
        yield machine


@pytest.fixture
def hosts(host: Box, tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path / "home", host)
    made.env["GPURUN_LEAVE_AFTER_MINUTES"] = "0"
    yield made
    made.close()


def left(hosts: Hosts, train: str = STEPS, **minutes: float) -> str:
    """A run whose driver has gone."""
    run = hosts.begin(hosts.recipe(train=train, **minutes))
    hosts.until(lambda: "the keeper watches it" in hosts.logs())
    hosts.until(lambda: holder(hosts.places.run_lock(run)) is None)
    return run


def test_its_progress_is_seen_and_its_end_is_collected(host: Box, hosts: Hosts) -> None:
    run = left(hosts)
    first = hosts.document(run)["train"]["step"]
    hosts.until(lambda: hosts.document(run)["train"]["step"] > first, 60)
    assert holder(hosts.places.run_lock(run)) is None
    (run_root(host) / "go").touch()
    document = hosts.finished(run)
    assert (document["state"], document["exit_code"]) == ("done", 0), hosts.logs()
    assert hosts.fetched(run, "out/result.txt") == "42\n"
    hosts.until(lambda: left_on(host) == [])


def test_its_timer_ends_it(host: Box, hosts: Hosts) -> None:
    run = left(hosts, run_minutes=0.4, grace_minutes=0.2)
    assert hosts.finished(run)["state"] == "deadline"
    assert hosts.fetched(run, "out/result.txt") == "42\n"


def test_kill_ends_it_and_collects(hosts: Hosts) -> None:
    run = left(hosts)
    assert hosts.run("kill", run, "--yes").returncode == 0
    assert hosts.finished(run)["state"] == "killed"
    assert hosts.fetched(run, "out/result.txt") == "42\n"


def test_one_that_dies_is_judged(host: Box, hosts: Hosts) -> None:
    run = left(hosts)
    pid = int((run_root(host) / ".gpurun/train.started/pid").read_text())
    host.sh(f"kill -KILL -{pid}")
    document = hosts.finished(run)
    assert (document["state"], document["exit_code"]) == ("failed", 5)


def test_a_keeper_that_was_killed_watches_on(hosts: Hosts) -> None:
    run = left(hosts)
    for pid in hosts.processes():
        os.kill(pid, signal.SIGKILL)
    before = hosts.document(run)["train"]["step"]  # this command revives the keeper
    hosts.until(lambda: hosts.document(run)["train"]["step"] > before, 60)


def test_what_its_fuse_did_not_hear_it_is_told_once_the_box_can_be_reached(
    host: Box, hosts: Hosts
) -> None:
    """F30: until then it ends by the timer that the fuse holds."""
    run = left(hosts, run_minutes=20)
    before = hosts.document(run)["timer"]
    host.cut()
    lags = hosts.run("extend", run, "30m", "--yes")
    assert lags.returncode == 4, lags.stderr
    timer = hosts.document(run)["timer"]
    assert (timer["seq"], timer["effective_by"]) == (before["seq"] + 1, "fuse")
    host.heal()
    hosts.until(lambda: hosts.document(run)["timer"]["effective_by"] == "keeper", 60)
    fuse = next(each for each in hosts.document(run)["guards"] if each["name"] == "fuse")
    assert (fuse["state"], fuse["seq"]) == ("armed", before["seq"] + 1)
