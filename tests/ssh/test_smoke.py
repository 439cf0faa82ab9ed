"""The shipped smoke recipe over SSH: the same phases and the same report as on this machine."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.boxes import Box, box, shape
from tests.hosts import Hosts, left_on
from tests.ssh.packages import packages, use_packages


@pytest.fixture
def machine() -> Iterator[Box]:
    with box(replace(shape.UBUNTU_VM, network="internet", share=packages())) as made:
        use_packages(made)
        yield made


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_smoke_recipe_goes_its_whole_way(machine: Box, tmp_path: Path) -> None:
    hosts = Hosts(tmp_path / "home", machine)
    try:
        done = hosts.go(Path("smoke"), timeout_s=580)
        assert done.returncode == 0, done.stderr + hosts.logs()
        document = json.loads(done.stdout)
        assert document["train"]["step"] == document["train"]["total_steps"]
        names = {Path(artifact["path"]).name for artifact in document["artifacts"]}
        assert {"submission.json", "metrics.jsonl", "train.log"} <= names
        hosts.until(lambda: left_on(machine) == [])
    finally:
        hosts.close()
