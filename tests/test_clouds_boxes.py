"""Instances are real boxes: reached by SSH, with a key of their own, ended when destroyed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.boxes import claims as claimed
from tests.boxes import make_key, public_line
from tests.clouds.prime.renter import Renter as PrimeRenter
from tests.clouds.serve import Cloud, cloud
from tests.clouds.vast.renter import Renter

pytestmark = pytest.mark.box
ROOT = Path(__file__).parents[1]
SELF_DESTROY = """
url=$API/api/v0/instances/$CONTAINER_ID/
curl -sS -X DELETE -H "Authorization: Bearer $CONTAINER_API_KEY" "$url" >/root/answer 2>&1
"""


@pytest.fixture
def vast() -> Iterator[Cloud]:
    with cloud("vast") as running:
        yield running


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "id"
    make_key(path)
    return path


def ssh(key: Path, user: str, host: str, port: int, command: str) -> str:
    """What a command prints over OpenSSH's client, stderr included."""
    options = [
        *("BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null"),
        *("IdentitiesOnly=yes", "KexAlgorithms=curve25519-sha256", "LogLevel=ERROR"),
    ]
    flags = [part for option in options for part in ("-o", option)]
    done = subprocess.run(
        ["ssh", "-F", "none", "-i", str(key), *flags, "-p", str(port), f"{user}@{host}", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=30,
    )
    return done.stdout.strip()


def until(what: Callable[[], Any], seconds: float = 20) -> Any:
    """Its first true value."""
    give_up_s = time.monotonic() + seconds
    while not (value := what()):
        assert time.monotonic() < give_up_s, "it never came true"
        time.sleep(0.05)
    return value


def running_row(renter: Renter, number: int) -> dict[str, Any]:
    def row() -> dict[str, Any] | None:
        shown = renter.show(number)
        return shown if shown["actual_status"] == "running" else None

    found: dict[str, Any] = until(row)
    return found


def boxes(owner: int) -> list[str]:
    """The machines that this process has made and not yet destroyed."""
    claims = claimed.STATE.glob("*/owner")
    return [path.parent.name for path in claims if path.read_text().split()[0] == str(owner)]


def test_an_instance_is_a_box_with_the_gpus_of_its_offer(vast: Cloud, key: Path) -> None:
    renter = Renter(vast)
    renter.post("/ssh/", ssh_key=public_line(key))
    onstart = 'env > /root/onstart.env; echo "$CONTAINER_ID" > /root/started'
    made = renter.create(onstart=onstart, env={"A": "b c"}).json()
    row = running_row(renter, made["new_contract"])
    direct = (row["public_ipaddr"], int(row["ports"]["22/tcp"][0]["HostPort"]))
    proxied = (row["ssh_host"], row["ssh_port"])
    command = "nvidia-smi --query-gpu=name --format=csv,noheader; nvidia-smi topo -m | grep -c NV18"
    for host, port in (direct, proxied):
        said = ssh(key, "root", host, port, command)
        assert said.split("\n") == ["NVIDIA H100 80GB HBM3"] * 4 + ["4"]
    read = "cat /root/started; grep -x 'A=b c' /root/onstart.env; tr '\\0' '\\n' </proc/1/environ"
    until(lambda: str(row["id"]) in ssh(key, "root", *direct, "cat /root/started"))
    said = ssh(key, "root", *direct, read)
    assert said.startswith(f"{row['id']}\nA=b c\n")
    assert f"CONTAINER_API_KEY={made['instance_api_key']}" in said
    assert "CONTAINER_API_KEY" not in ssh(key, "root", *direct, "env")
    assert ssh(key, "root", *direct, "df -BGB --output=size / | tail -1") == "200GB"
    sent = vast.meter().billed_usd
    ssh(key, "root", *direct, "head -c 3000000 /dev/zero")
    assert vast.meter().billed_usd - sent > Decimal("0.003") * Decimal("0.0026")


def test_without_a_key_in_the_account_nobody_gets_in(vast: Cloud, key: Path) -> None:
    renter = Renter(vast)
    row = running_row(renter, renter.create().json()["new_contract"])
    address = (row["public_ipaddr"], 22)
    assert "Permission denied" in ssh(key, "root", *address, "true")
    renter.post(f"/instances/{row['id']}/ssh/", ssh_key=public_line(key))
    assert ssh(key, "root", *address, "echo in") == "in"


def test_a_box_ends_itself_with_its_own_key_at_the_address_of_the_cloud(vast: Cloud) -> None:
    renter = Renter(vast)
    number = renter.create(onstart=SELF_DESTROY, env={"API": vast.url}).json()["new_contract"]
    until(lambda: renter.show(number) is None)
    assert vast.meter().alive == 0
    assert renter.http.get("/audit_logs/").json()[-1]["api_key_id"] == number


def test_the_onstart_runs_again_at_every_start_and_a_recycle_wipes_the_disk(
    vast: Cloud, key: Path
) -> None:
    renter = Renter(vast)
    renter.post("/ssh/", ssh_key=public_line(key))
    onstart = "cat /proc/sys/kernel/random/boot_id >> /root/starts"
    number = renter.create(onstart=onstart).json()["new_contract"]

    def starts(count: int) -> list[str]:
        def read() -> list[str] | None:
            host = running_row(renter, number)["public_ipaddr"]
            lines = ssh(key, "root", host, 22, "cat /root/starts").split()
            return lines if len(lines) == count else None

        found: list[str] = until(read)
        return found

    starts(1)
    vast.fault("container_restart")
    same = starts(2)
    assert same[0] == same[1], "a container restart keeps the kernel"
    vast.fault("host_reboot")
    rebooted = starts(3)
    assert rebooted[2] != rebooted[1], "a reboot does not"
    renter.put(number, state="stopped")
    renter.put(number, state="running")
    starts(4)
    vast.fault("recycle")
    starts(1)


def test_the_ways_to_ssh_fail_one_by_one(vast: Cloud, key: Path) -> None:
    renter = Renter(vast)
    renter.post("/ssh/", ssh_key=public_line(key))
    for path, works in (("direct", "proxy"), ("proxy", "direct"), ("both", "")):
        vast.fault("ssh_refused", path=path)
        row = running_row(renter, renter.create().json()["new_contract"])
        direct = (row["public_ipaddr"], int(row["ports"]["22/tcp"][0]["HostPort"]))
        ways = {"direct": direct, "proxy": (row["ssh_host"], row["ssh_port"])}
        said = {way: ssh(key, "root", *where, "echo in") for way, where in ways.items()}
        assert [way for way, text in said.items() if text == "in"] == ([works] if works else [])


def test_a_pod_is_a_machine_of_its_upstream(key: Path) -> None:
    with cloud("prime") as prime:
        renter = PrimeRenter(prime)
        renter.http.post("/ssh_keys/", json={"name": "k", "publicKey": public_line(key)})
        number = renter.create("lambdalabs").json()["id"]
        pod = until(lambda: (pod := renter.show(number))["status"] == "ACTIVE" and pod)
        user, _, rest = pod["sshConnection"].partition("@")
        host, _, port = rest.partition(" -p ")
        said = ssh(key, user, host, int(port), "whoami; cat /proc/1/comm; nvidia-smi -L | wc -l")
        assert said.split() == ["ubuntu", "systemd", "4"]
        renter.delete(number)
        until(lambda: renter.listed() == [])
        assert boxes(os.getpid()) == [], "the machine is gone, not only its row"
        with pytest.raises(OSError, match="No route to host"):
            socket.create_connection((host, int(port)), timeout=10)
        assert prime.meter().alive == 0


@contextmanager
def alone(*argv: str) -> Iterator[subprocess.Popen[str]]:
    """The cloud as a process of its own, ended in the end."""
    command = [sys.executable, "-m", "tests.clouds", *argv]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def test_alone_it_prints_one_line_and_ends_its_boxes_when_it_is_ended() -> None:
    with alone("vast", "--port", "0") as process:
        assert process.stdout is not None
        where = json.loads(process.stdout.readline())
        assert sorted(where) == ["api_key", "meter_url", "url"]
        headers = {"Authorization": f"Bearer {where['api_key']}"}
        http = httpx.Client(headers=headers, verify=False)  # plain HTTP: no certificates to load
        ask = http.post(f"{where['url']}/api/v0/bundles/", json={}).json()["offers"][0]["id"]
        body = {"image": "x", "disk": 20, "label": "gpurun-x"}
        http.put(f"{where['url']}/api/v0/asks/{ask}/", json=body)
        meter = http.get(where["meter_url"]).json()
        assert meter["alive"] == 1
        assert set(meter["instances"][0]) == {"id", "label", "state", "billed_usd", "alive"}
        clock = http.post(f"{where['meter_url']}/clock", json={"advance_s": 3600}).json()
        assert clock["rate"] == 1
        assert http.get(where["meter_url"]).json()["billed_usd"] > 0.1
        assert len(boxes(process.pid)) == 1
        faults = f"{where['meter_url']}/faults"
        http.post(faults, json={"name": "tail_s", "seconds": 60})
        listed = {fault["name"]: fault for fault in http.get(faults).json()["faults"]}
        assert listed["tail_s"]["set"] == {"seconds": 60}
        assert listed["tail_s"]["sentence"].endswith("DELETE.")
        assert http.post(faults, json={"name": "nonsense"}).status_code == 400
        nowhere = http.post(faults, json={"name": "html", "endpoint": "buy"})
        assert "vast has no endpoint 'buy': it has audit, bid, " in nowhere.json()["error"]
        cleared = http.delete(faults, params={"name": "tail_s"}).json()["faults"]
        assert all(fault["set"] is None for fault in cleared)
    assert process.returncode == 0
    assert boxes(process.pid) == []


def test_alone_it_ends_with_its_parent() -> None:
    script = f"{sys.executable} -m tests.clouds prime & echo $!; wait"
    parent = subprocess.Popen(["sh", "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert json.loads(parent.stdout.readline())["url"]
    finally:
        parent.kill()
        parent.wait()
        try:
            until(lambda: not Path(f"/proc/{child}").exists())
        except AssertionError:
            os.kill(child, signal.SIGKILL)
            raise
