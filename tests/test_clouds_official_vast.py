"""The emulated Vast.ai satisfies the official client: vastai 1.9.1, its CLI and its SDK.

What the client prints is asserted, its own faults included, for they are what users see.
"""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.clouds.clock import Clock
from tests.clouds.official import Session, vastai
from tests.clouds.serve import Cloud, cloud
from tests.clouds.stub import StubBoxes
from tests.clouds.world import BOOT_S

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIH renter@example.org"
FOUR = ("num_gpus=4 gpu_name=H100_SXM reliability>0.98 duration>1 disk_space>200", "-o", "dph")

SDK = """
import json
import sys
from vastai import SyncClient, VastAI
from vastai.data.instance import InstanceConfig
from vastai.data.query import Query

url, said = sys.argv[1], {}
vast = VastAI()
offers = vast.search_offers(query="num_gpus=1 gpu_name=H100_SXM", order="dph_total", storage=100)
said["names"] = sorted({offer["gpu_name"] for offer in offers})
ask, image = offers[0]["id"], "pytorch/pytorch"
made = vast.create_instance(ask, image=image, disk=100, label="sdk", ssh=True)
number = made["new_contract"]
said["created"] = made["success"]
said["listed"] = [row["label"] for row in vast.show_instances()]
said["shown"] = vast.show_instance(number)["gpu_name"]
job = vast.create_scheduled_job(
    start_time=4102444801, end_time=4102531200, api_endpoint=f"/api/v0/instances/{number}/",
    request_method="DELETE", request_body={}, frequency="HOURLY", instance_id=number)
said["jobs"] = [each["id"] == job["scheduled_job_id"] for each in vast.show_scheduled_jobs()]
said["unscheduled"] = vast.delete_scheduled_job(job["scheduled_job_id"])["success"]
said["labelled"] = vast.label_instance(number, "renamed")["success"]
said["destroyed"] = vast.destroy_instance(number)["success"]
said["gone"] = vast.show_instance(number)
client = SyncClient(vast_server=url)
found = client.search(Query({}), limit=1)
second = client.create_instance(found[0].id, InstanceConfig(image=image, disk=20))
said["second"] = [row.id == second.id for row in client.show_instances()]
second.destroy()
said["left"] = len(client.show_instances())
print(json.dumps(said))
"""


@pytest.fixture
def vast() -> Iterator[Cloud]:
    with cloud("vast", boxes=StubBoxes(), clock=Clock(rate=0)) as running:
        yield running


@pytest.fixture
def cli(vast: Cloud, tmp_path: Path) -> Session:
    return vastai(vast, tmp_path)


def plain(text: str) -> str:
    """Without colours and the lines of tables."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*[mK]|[─-╿]", " ", text).split())


@pytest.mark.slow
def test_the_cli_rents_stops_schedules_and_destroys(vast: Cloud, cli: Session) -> None:
    assert cli("vastai", "--version") == "1.9.1\n"
    table = plain(cli("vastai", "search", "offers", *FOUR, "--storage", "200"))
    assert "4x H100_SXM" in table
    assert "6.0617" in table  # $/h with 200 GB: 6.02 + 200 x 0.15 / 720
    rows = json.loads(cli("vastai", "search", "offers", *FOUR, "--raw"))
    good = next(row for row in rows if row["bw_nvlink"] and row["direct_port_count"])
    assert "'success': True" in cli("vastai", "create", "ssh-key", KEY)
    made = cli(
        *("vastai", "create", "instance", str(good["id"]), "--image", "pytorch/pytorch"),
        *("--disk", "200", "--ssh", "--direct", "--label", "gpurun-a", "--cancel-unavail"),
        *("--onstart-cmd", "touch ~/.no_auto_tmux", "--env", "-e A=b -p 8080:8080"),
    )
    number = re.search(r"'success': True, 'new_contract': (\d+)", made)[1]  # type: ignore[index]
    vast.advance(BOOT_S)
    listed = plain(cli("vastai", "show", "instances"))
    assert "Total: 1 instances" in listed
    assert f"{number} running gpurun-a 4x H100 SXM" in listed
    assert cli("vastai", "ssh-url", number) == "ssh://root@192.0.2.1:22\n"
    assert cli("vastai", "label", "instance", number, "b") == f"label for {number} set to b.\n"
    assert cli("vastai", "stop", "instance", number) == f"stopping instance {number}.\n"
    assert cli("vastai", "start", "instance", number) == f"starting instance {number}.\n"
    assert "success - Scheduling HOURLY job to reboot instance" in cli(
        *("vastai", "reboot", "instance", number, "--schedule", "HOURLY"),
        *("--day", "*", "--hour", "*"),
    )
    jobs = plain(cli("vastai", "show", "scheduled-jobs"))
    assert f"{number} /api/v0/instances/reboot/{number}/" in jobs
    assert cli("vastai", "destroy", "instance", number).endswith("Aborted.\n")
    assert vast.meter().alive == 1
    assert cli("vastai", "destroy", "instance", number, "-y") == f"destroying instance {number}.\n"
    assert cli("vastai", "show", "instance", number, "--raw") == '{\n "instances": null\n}\n'
    assert vast.meter().alive == 0


def test_the_cli_shows_the_credit_and_the_next_day_what_it_was_spent_on(tmp_path: Path) -> None:
    noon = datetime.now(UTC).replace(hour=12) - timedelta(days=2)  # the client asks for 7 days
    with cloud("vast", boxes=StubBoxes(), clock=Clock(noon, rate=0)) as vast:
        cli = vastai(vast, tmp_path)
        query = "num_gpus=1 gpu_name=H100_SXM"
        rows = json.loads(cli("vastai", "search", "offers", query, "--raw"))
        made = cli("vastai", "create", "instance", str(rows[0]["id"]), "--image", "x", "--raw")
        vast.advance(BOOT_S + 1800)
        cli("vastai", "destroy", "instance", str(json.loads(made)["new_contract"]), "-y")
        spent = vast.meter().billed_usd
        assert spent > 0.9
        user = json.loads(cli("vastai", "show", "user", "--raw"))
        assert user["credit"] == pytest.approx(float(100 - spent))
        vast.advance(86400)
        charges = json.loads(cli("vastai", "show", "invoices-v1", "--charges", "--raw"))
        amounts = [charge["amount"] for charge in charges["results"]]
        assert sum(amounts) == pytest.approx(float(spent))


def test_every_error_exits_0_and_is_said_on_stderr(vast: Cloud, tmp_path: Path) -> None:
    wrong = vastai(vast, tmp_path, api_key="nobody's")
    refused = wrong.run("vastai", "show", "instances", "--raw")
    assert (refused.returncode, refused.stdout) == (0, "")
    said = json.loads(refused.stderr.strip().splitlines()[-1])
    assert said == {"error": True, "status_code": 404, "msg": "Invalid user key"}


def test_the_client_repeats_a_create_whose_answer_is_lost(vast: Cloud, cli: Session) -> None:
    """Why gpurun does not use it: the offer looks gone, and a box bills."""
    offer = json.loads(cli("vastai", "search", "offers", *FOUR, "--raw"))[0]["id"]
    vast.fault("answer_lost", endpoint="create")
    asked = cli.run("vastai", "create", "instance", str(offer), "--image", "x", "--disk", "20")
    assert (asked.returncode, asked.stdout) == (0, "")
    assert "no_such_ask" in asked.stderr
    assert vast.meter().alive == 1


def test_the_sdk_and_its_other_client_rent_and_destroy(vast: Cloud, cli: Session) -> None:
    said = json.loads(cli("python", "-c", SDK, vast.url).splitlines()[-1])
    assert said == {
        "names": ["H100 SXM"],
        "created": True,
        "listed": ["sdk"],
        "shown": "H100 SXM",
        "jobs": [True],
        "unscheduled": True,
        "labelled": True,
        "destroyed": True,
        "gone": None,
        "second": [True],
        "left": 0,
    }
    assert vast.meter().alive == 0
