"""The emulated Prime Intellect satisfies the official client: the `prime` 0.18.0 CLI.

What the client prints is asserted, its own faults included, for they are what users see.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clouds.clock import Clock
from tests.clouds.official import Session, prime
from tests.clouds.prime.account import TEAM_ID
from tests.clouds.prime.renter import Renter
from tests.clouds.serve import Cloud, cloud
from tests.clouds.stub import StubBoxes
from tests.clouds.world import BOOT_S

FOUR = ("--gpu-type", "H100_80GB", "--gpu-count", "4", "--no-group-similar", "-o", "json")
SIZES = ("--disk-size", "200", "--vcpus", "104", "--memory", "900")


@pytest.fixture
def running() -> Iterator[Cloud]:
    with cloud("prime", boxes=StubBoxes(), clock=Clock(rate=0)) as made:
        yield made


@pytest.fixture
def cli(running: Cloud, tmp_path: Path) -> Session:
    return prime(running, tmp_path)


def offers(cli: Session) -> dict[str, Any]:
    """The on-demand rows by upstream."""
    found = json.loads(cli("prime", "availability", "list", *FOUR))["gpu_resources"]
    return {row["provider"]: row for row in found if not row["is_spot"]}


@pytest.mark.slow
def test_the_cli_lists_creates_shows_and_terminates(running: Cloud, cli: Session) -> None:
    assert cli("prime", "--version") == "Prime CLI version: 0.18.0\n"
    offer = offers(cli)["datacrunch"]
    assert (offer["price_per_hour"], offer["gpu_type"]) == ("$8.76", "H100 80GB")
    made = cli(
        *("prime", "pods", "create", "--id", offer["id"], "--name", "gpurun-a", *SIZES),
        *("--image", "ubuntu_22_cuda_12", "--yes"),
    )
    number = re.search(r"Successfully created pod ([0-9a-f]{32})", made)[1]  # type: ignore[index]
    running.advance(BOOT_S + 1)
    [pod] = json.loads(cli("prime", "pods", "list", "-o", "json"))["pods"]
    assert (pod["id"], pod["name"], pod["gpu"]) == (number, "gpurun-a", "H100_80GB x4")
    shown = json.loads(cli("prime", "pods", "status", number, "-o", "json"))
    assert (shown["status"], shown["ssh"]) == ("ACTIVE", "root@192.0.2.1 -p 22")
    assert shown["installation_progress"] == 100
    running.advance(3600)
    wallet = json.loads(cli("prime", "wallet", "-o", "json"))
    assert wallet["balance_usd"] == pytest.approx(float(100 - running.meter().billed_usd))
    assert wallet["recent_billings"][0]["resource_id"] == number
    done = cli("prime", "pods", "terminate", number, "--yes")
    assert done.strip().endswith(f"Successfully terminated pod {number}")
    running.advance(1)
    assert "HTTP 404: Pod not found" in cli("prime", "pods", "terminate", number, "-y", exit_code=1)
    [past] = json.loads(cli("prime", "pods", "history", "-o", "json"))["history"]
    assert past["total_cost"] == pytest.approx(float(running.meter().billed_usd))
    assert running.meter().alive == 0


def test_the_cli_shows_the_account_its_teams_and_disks(running: Cloud, cli: Session) -> None:
    me = cli("prime", "--plain", "whoami")
    assert "renter@example.org" in me
    assert re.search(r"instances\s+✓\s+✓", me)
    [team] = json.loads(cli("prime", "teams", "list", "-o", "json"))["teams"]
    assert (team["teamId"], team["role"]) == (TEAM_ID, "ADMIN")
    body = {"disk": {"size": 100, "name": "d"}, "provider": {"type": "datacrunch"}}
    disk = Renter(running).http.post("/disks", json=body).json()["id"]
    [shown] = json.loads(cli("prime", "disks", "list", "-o", "json"))["disks"]
    assert (shown["id"], shown["size"], shown["price_hr"]) == (disk, 100, 0.01)
    assert "Available" in cli("prime", "--plain", "availability", "disks")
    cli("prime", "disks", "terminate", disk, "--yes")
    assert running.meter().alive == 0


def test_the_cli_cannot_rent_where_a_max_price_is_wanted(running: Cloud, cli: Session) -> None:
    """Why gpurun does not use it: it always sends null."""
    refused = cli(
        *("prime", "pods", "create", "--id", offers(cli)["massedcompute"]["id"], *SIZES),
        *("--name", "a", "--image", "ubuntu_22_cuda_12", "-y"),
        exit_code=1,
    )
    assert "HTTP 400: Missing field: max_price not specified" in refused
    assert running.meter().alive == 0


def test_one_pod_of_several_nodes_blinds_the_list_of_the_cli(running: Cloud, cli: Session) -> None:
    Renter(running).rent()
    running.fault("ssh_shape", shape="nodes")
    blind = cli.run("prime", "pods", "list", "-o", "json")
    assert blind.returncode == 1
    assert "Failed to list pods" in blind.stdout


def test_a_wrong_key_looks_like_an_empty_market(running: Cloud, tmp_path: Path) -> None:
    wrong = prime(running, tmp_path, api_key="nobody's")
    said = wrong("prime", "--plain", "availability", "list")
    assert "Error fetching availability page 1: API key unauthorized" in said


def test_the_cli_follows_a_redirect_with_its_body_and_key(running: Cloud, cli: Session) -> None:
    running.fault("redirects", endpoint="create")
    offer = offers(cli)["lambdalabs"]
    made = cli(
        *("prime", "pods", "create", "--id", offer["id"], "--name", "b", *SIZES, "--yes"),
        *("--image", "cuda_12_4_pytorch_2_5", "--env", "A=b"),
    )
    assert "Successfully created pod" in made
    assert running.meter().alive == 1
