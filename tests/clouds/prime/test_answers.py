"""The emulated Prime Intellect answers as its official client expects, and bills to the cent."""

from decimal import Decimal
from typing import Any

import httpx
import pytest

from tests.clouds.clock import Clock
from tests.clouds.prime.account import TEAM_ID
from tests.clouds.prime.renter import START, Renter
from tests.clouds.prime.world import DELETING_S
from tests.clouds.serve import Cloud, cloud
from tests.clouds.stub import StubBoxes
from tests.clouds.world import BOOT_S

USD = Decimal("8.76")  # 4xH100 at datacrunch
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIH renter@example.org"
BILLED_BOOT_S = Decimal(str(BOOT_S)) * 2 / 3  # PROVISIONING is free, PENDING is not


def test_availability_is_filtered_and_paged_from_1(renter: Renter) -> None:
    assert {(o["gpuType"], o["gpuCount"]) for o in renter.offers()} == {("H100_80GB", 4)}
    every = renter.http.get("/availability/gpus").json()
    pages = [
        renter.http.get("/availability/gpus", params={"page": n, "page_size": 5}).json()
        for n in (1, 2, 3)
    ]
    assert [row for page in pages for row in page["items"]] == every["items"]
    assert {page["totalCount"] for page in pages} == {every["totalCount"]}


def test_one_cloud_id_stands_for_several_offers(renter: Renter) -> None:
    runpod = [o for o in renter.offers() if o["provider"] == "runpod"]
    assert len({o["cloudId"] for o in runpod}) == 1
    assert len({o["dataCenter"] for o in runpod}) == 3
    assert "Unavailable" in {o["stockStatus"] for o in runpod}


def test_the_legacy_availability_needs_its_slash(renter: Renter) -> None:
    moved = renter.http.get("/availability")
    assert (moved.status_code, moved.text) == (307, "")
    assert moved.headers["location"] == "/api/v1/availability/"
    assert "H100_80GB" in renter.http.get("/availability/").json()
    summary = renter.http.get("/availability/gpu-summary").json()
    assert summary["H100_80GB"]["4"]["cheapest"]["onDemand"] == 7.10
    assert renter.http.get("/availability/multi-node").json()["items"][0]["gpuCount"] == 16


def test_a_pod_goes_from_provisioning_to_active_and_installed(
    renter: Renter, prime: Cloud, boxes: StubBoxes
) -> None:
    renter.http.post("/ssh_keys/", json={"name": "laptop", "publicKey": KEY})
    made = renter.create().json()
    assert (made["status"], made["priceHr"], made["sshConnection"]) == ("PROVISIONING", 8.76, None)
    assert len(made["id"]) == 32
    prime.advance(BOOT_S / 2)
    assert renter.show(made["id"])["status"] == "PENDING"
    prime.advance(BOOT_S / 2)
    pod = renter.show(made["id"])
    assert (pod["status"], pod["installationStatus"]) == ("ACTIVE", "ACTIVE")
    assert pod["sshConnection"] == "root@192.0.2.1 -p 22"
    assert pod["primePortMapping"][0]["external"] == "22"
    prime.advance(1)
    assert renter.show(made["id"])["installationStatus"] == "FINISHED"
    assert boxes.made[0].keys == (KEY,)
    assert (boxes.made[0].spec.gpu, boxes.made[0].spec.gpu_count) == ("H100_SXM", 4)


def test_the_login_depends_on_the_upstream(renter: Renter, boxes: StubBoxes) -> None:
    pods = {provider: renter.rent(provider) for provider in ("runpod", "lambdalabs")}
    assert renter.show(pods["runpod"])["sshConnection"].startswith("root@")
    assert renter.show(pods["lambdalabs"])["sshConnection"].startswith("ubuntu@")
    assert [box.spec.vm for box in boxes.made] == [False, True]


def test_a_status_has_no_price_and_leaves_unknown_ids_out(renter: Renter) -> None:
    number = renter.rent()
    query = {"pod_ids": [number, "0" * 32]}
    [status] = renter.http.get("/pods/status", params=query).json()["data"]
    assert status["podId"] == number
    assert "priceHr" not in status
    assert "primePortMapping" not in status


def test_a_pod_bills_its_price_until_it_is_terminated(renter: Renter, prime: Cloud) -> None:
    number = renter.create().json()["id"]
    prime.advance(BOOT_S + 3600)
    assert renter.delete(number).json() == {"status": "TERMINATED"}
    assert renter.show(number)["status"] == "DELETING"
    prime.advance(9 * 3600)
    seconds = BILLED_BOOT_S + 3600 + Decimal(str(DELETING_S))
    expected = USD * seconds / 3600
    assert prime.meter().billed_usd == pytest.approx(expected, abs=Decimal("1e-20"))
    assert prime.meter().alive == 0


def test_what_is_terminated_is_404_and_in_history_alone(
    renter: Renter, prime: Cloud, boxes: StubBoxes
) -> None:
    number = renter.rent()
    renter.delete(number)
    assert renter.listed() == [number]
    prime.advance(DELETING_S)
    assert renter.listed() == []
    assert renter.http.get(f"/pods/{number}").status_code == 404
    again = renter.delete(number)
    assert (again.status_code, again.json()) == (404, {"detail": "Pod not found"})
    [past] = renter.http.get("/pods/history", params={"sort_by": "terminatedAt"}).json()["data"]
    assert (past["id"], past["type"], past["name"]) == (number, "Instance", "gpurun-a")
    assert Decimal(str(past["totalBilledPrice"])) == pytest.approx(prime.meter().billed_usd)
    assert boxes.made[0].done == ["destroy"]


def test_more_disk_than_the_default_costs_more(renter: Renter) -> None:
    row = renter.create(diskSize=1200).json()
    assert row["priceHr"] == pytest.approx(8.76 + 1000 * 0.00011)


@pytest.mark.parametrize(
    ("provider", "change", "status", "text"),
    [
        ("massedcompute", {"maxPrice": None}, 400, "Missing field: max_price not specified"),
        ("datacrunch", {"dataCenterId": None}, 400, "Missing field: data_center_id not specified"),
        ("datacrunch", {"image": "axolotl"}, 400, "Provider Datacrunch is not supported for image"),
        ("datacrunch", {"socket": "PCIe"}, 400, "currently unavailable in this dataCenter"),
        ("massedcompute", {"maxPrice": 1.5}, 400, "currently unavailable in this dataCenter"),
        ("datacrunch", {"cloudId": None}, 422, "Field required"),
        ("datacrunch", {"gpuCount": "4"}, 422, "Input should be a valid int"),
        ("datacrunch", {"data_center_id": "x"}, 422, "Extra inputs are not permitted"),
    ],
)
def test_what_prime_does_not_take_it_refuses(
    renter: Renter, prime: Cloud, provider: str, change: dict[str, Any], status: int, text: str
) -> None:
    answer = renter.create(provider, **change)
    assert answer.status_code == status
    assert text in str(answer.json()["detail"])
    assert prime.meter().alive == 0


def test_any_max_price_is_taken_where_one_is_wanted(renter: Renter) -> None:
    for cap in (0, True, 10.5):
        assert renter.create("massedcompute", maxPrice=cap).status_code == 200


def test_a_row_that_is_unavailable_is_sold_out(renter: Renter) -> None:
    offer = next(o for o in renter.offers() if o["stockStatus"] == "Unavailable")
    answer = renter.create("runpod", dataCenterId=offer["dataCenter"], country="US")
    assert answer.status_code == 400


def test_keys_and_scopes(prime: Cloud, renter: Renter) -> None:
    assert Renter(prime, api_key="nobody's").http.get("/pods").status_code == 401
    none = httpx.get(f"{prime.url}/api/v1/pods")
    assert (none.status_code, none.json()) == (403, {"detail": "Not authenticated"})
    prime.fault("key_scopes", scopes="availability:read, instances:read")
    assert renter.http.get("/pods").status_code == 200
    assert renter.create().status_code == 403
    assert renter.http.get("/billing/wallet").status_code == 403


def test_whoami_tells_the_scopes(prime: Cloud, renter: Renter) -> None:
    prime.fault("key_scopes", scopes="user:read,instances:write")
    scope = renter.http.get("/user/whoami").json()["data"]["scope"]
    assert scope["instances"] == {"read": True, "write": True}
    assert scope["billing"] == {"read": False, "write": False}


def test_a_team_pays_for_its_own_pods(renter: Renter, prime: Cloud) -> None:
    assert renter.http.get("/user/teams").json()["data"][0]["teamId"] == TEAM_ID
    order = renter.order() | {"team": {"teamId": TEAM_ID}}
    made = renter.http.post("/pods", json=order).json()
    assert made["teamId"] == TEAM_ID
    prime.advance(3600)
    personal = renter.http.get("/billing/wallet").json()
    team = renter.http.get("/billing/wallet", params={"teamId": TEAM_ID}).json()
    assert (personal["balance_usd"], personal["total_billings"]) == (100, 0)
    assert team["balance_usd"] == pytest.approx(250 - 8.76, abs=0.01)
    assert team["recent_billings"][0]["resource_id"] == made["id"]
    foreign = renter.order() | {"team": {"teamId": "c" + "0" * 24}}
    assert renter.http.post("/pods", json=foreign).status_code == 403


def test_a_new_pod_lets_in_the_primary_key_or_the_one_named(
    renter: Renter, boxes: StubBoxes
) -> None:
    second = KEY.replace("IH", "II")
    for text in (KEY, second):
        key = renter.http.post("/ssh_keys/", json={"name": "k", "publicKey": text}).json()
    assert [k["isPrimary"] for k in renter.http.get("/ssh_keys/").json()["data"]] == [True, False]
    renter.rent()
    renter.rent(sshKeyId=key["id"])
    assert [box.keys for box in boxes.made] == [(KEY,), (second,)]
    renter.http.patch(f"/ssh_keys/{key['id']}", json={"isPrimary": True})
    renter.http.delete(f"/ssh_keys/{key['id']}")
    assert len(renter.http.get("/ssh_keys/").json()["data"]) == 1


def test_a_disk_outlives_its_pod_and_bills_on(renter: Renter, prime: Cloud) -> None:
    wanted = {"disk": {"size": 100, "name": "d"}, "provider": {"type": "datacrunch"}}
    disk = renter.http.post("/disks", json=wanted).json()
    order = renter.order() | {"disks": [disk["id"]]}
    pod = renter.http.post("/pods", json=order).json()
    assert pod["attachedResources"][0]["id"] == disk["id"]
    assert renter.http.get(f"/disks/{disk['id']}").json()["pods"] == [pod["id"]]
    renter.delete(pod["id"])
    prime.advance(10)
    before = prime.meter()
    prime.advance(3600)
    assert prime.meter().billed_usd - before.billed_usd == Decimal("0.01")
    assert [(line.label, line.alive) for line in before.instances] == [
        ("d", True),
        ("gpurun-a", False),
    ]
    assert renter.http.delete(f"/disks/{disk['id']}").json() == {"status": "TERMINATED"}
    assert prime.meter().alive == 0


def test_a_wallet_at_zero_deletes_everything(boxes: StubBoxes) -> None:
    with cloud(
        "prime", boxes=boxes, clock=Clock(START, rate=0), credit_usd=Decimal("4.38")
    ) as poor:
        renter = Renter(poor)
        renter.rent()
        poor.advance(3600)
        assert renter.listed() == []
        assert poor.meter().billed_usd == pytest.approx(Decimal("4.38"), abs=Decimal("0.00001"))
        assert renter.create().status_code == 402


def test_a_slash_more_or_less_is_the_same(renter: Renter) -> None:
    number = renter.rent()
    for path in ("/pods", "/pods/", f"/pods/{number}", f"/pods/{number}/", "/user/whoami/"):
        assert renter.http.get(path).status_code == 200
