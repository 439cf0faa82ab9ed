"""The emulated Vast.ai answers as facts and its official clients say, and bills to the cent."""

from decimal import Decimal

import httpx
import pytest

from tests.clouds.clock import Clock
from tests.clouds.serve import Cloud, cloud
from tests.clouds.stub import StubBoxes
from tests.clouds.vast.machines import MONTH_H
from tests.clouds.vast.renter import START, Renter
from tests.clouds.world import BOOT_S

DISK_USD = Decimal("0.15") * 200 / MONTH_H  # per hour, 200 GB
STOPPED_USD = Decimal("0.20") * 200 / MONTH_H
GPU_USD = Decimal("6.02")  # the cheapest four that the tests' filters let through
HOUR = Decimal(3600)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIH renter@example.org"


def test_numbers_typed_as_text_are_compared_as_numbers(renter: Renter) -> None:
    found = renter.search(num_gpus={"gte": "4"}, gpu_ram={"gte": 79000.0})
    assert {offer["num_gpus"] for offer in found} == {4, 8}
    assert min(offer["reliability"] for offer in found) > 0.98


def test_names_match_exactly(renter: Renter) -> None:
    assert renter.search(gpu_name={"eq": "H100"}) == []
    several = renter.search(gpu_name={"in": ["H100 NVL", "H100 PCIE"]}, num_gpus={"gte": 1})
    assert {offer["gpu_name"] for offer in several} == {"H100 NVL", "H100 PCIE"}


def test_a_filter_on_id_matches_nothing_but_the_contract_id_does(renter: Renter) -> None:
    wanted = renter.search()[0]["id"]
    assert renter.search(id={"eq": wanted}) == []
    assert [offer["id"] for offer in renter.search(ask_contract_id={"eq": wanted})] == [wanted]


def test_a_search_returns_at_most_64_offers_whatever_its_limit(boxes: StubBoxes) -> None:
    with cloud("vast", boxes=boxes, offers=500) as wide:
        renter = Renter(wide)
        everything: dict[str, object] = {"gpu_name": {}, "num_gpus": {}, "reliability": {}}
        assert len(renter.search(limit=400, **everything)) == 64
        assert len(renter.search(limit=3, **everything)) == 3


def test_an_offer_is_priced_for_the_storage_asked_for(renter: Renter) -> None:
    small, large = (renter.search(allocated_storage=gb)[0] for gb in (8, 200))
    assert Decimal(str(large["dph_total"])) == pytest.approx(GPU_USD + DISK_USD)
    assert small["dph_base"] == large["dph_base"] < small["dph_total"] < large["dph_total"]


def test_what_was_found_is_bought_once(renter: Renter) -> None:
    ask = renter.search()[0]["id"]
    made = renter.create(ask).json()
    assert made["success"] is True
    assert len(made["instance_api_key"]) == 64
    second = renter.create(ask)
    assert second.status_code == 400
    assert "no_such_ask" in second.json()["msg"]
    assert renter.cloud.meter().alive == 1


def test_an_instance_goes_from_null_by_loading_to_running(renter: Renter, vast: Cloud) -> None:
    number = renter.create(label="gpurun-a").json()["new_contract"]
    assert renter.show(number)["actual_status"] is None
    vast.advance(BOOT_S / 2)
    loading = renter.show(number)
    assert (loading["actual_status"], loading["ports"]) == ("loading", None)
    vast.advance(BOOT_S)
    row = renter.show(number)
    assert row["actual_status"] == "running"
    assert row["status_msg"].startswith("success, running pytorch/pytorch/ssh")
    assert row["ports"]["22/tcp"][0]["HostPort"] == "22"
    assert (row["public_ipaddr"], row["ssh_host"]) == ("192.0.2.1", "127.0.0.1")
    assert (row["label"], row["num_gpus"], row["gpu_name"]) == ("gpurun-a", 4, "H100 SXM")


def test_the_container_starts_with_its_id_its_key_and_the_onstart(
    renter: Renter, vast: Cloud, boxes: StubBoxes
) -> None:
    renter.post("/ssh/", ssh_key=KEY)
    answer = renter.create(onstart="touch /started", env={"A": "b", "-p 8080:8080": "1"}).json()
    vast.advance(BOOT_S)
    start = boxes.made[0].starts[0]
    assert start.script == "touch /started"
    assert start.environment["CONTAINER_ID"] == str(answer["new_contract"])
    assert start.environment["CONTAINER_API_KEY"] == answer["instance_api_key"]
    assert start.environment["A"] == "b"
    assert start.keys == [KEY]
    assert boxes.made[0].spec.gpu == "H100_SXM"
    assert boxes.made[0].spec.gpu_count == 4


def test_storage_bills_from_the_creation_and_gpus_while_running(
    renter: Renter, vast: Cloud
) -> None:
    number = renter.rent()
    vast.advance(3600)
    renter.destroy(number)
    vast.advance(9 * 3600)
    expected = GPU_USD + DISK_USD * (HOUR + Decimal(str(BOOT_S))) / HOUR
    assert vast.meter().billed_usd == pytest.approx(expected, abs=Decimal("1e-20"))


def test_a_stopped_instance_pays_for_its_disk_and_more_than_before(
    renter: Renter, vast: Cloud, boxes: StubBoxes
) -> None:
    number = renter.rent()
    assert renter.put(number, state="stopped").json() == {"success": True}
    before = vast.meter().billed_usd
    vast.advance(3600)
    assert vast.meter().billed_usd - before == pytest.approx(STOPPED_USD, abs=Decimal("1e-20"))
    assert renter.show(number)["actual_status"] == "stopped"
    assert vast.meter().alive == 1
    renter.put(number, state="running")
    assert renter.show(number)["actual_status"] == "running"
    assert boxes.made[0].done == ["halt", "boot"]
    assert len(boxes.made[0].starts) == 2


def test_bytes_are_priced(renter: Renter, vast: Cloud, boxes: StubBoxes) -> None:
    number = renter.rent()
    before = vast.meter().billed_usd
    boxes.made[0].bytes_up, boxes.made[0].bytes_down = 2 * 10**9, 10 * 10**9
    bill = vast.meter().billed_usd - before
    assert bill == 2 * Decimal("0.0026") + 10 * Decimal("0.0013")
    renter.destroy(number)
    assert vast.meter().billed_usd - before == bill


def test_what_is_destroyed_is_null_with_200_and_the_second_delete_404(
    renter: Renter, boxes: StubBoxes
) -> None:
    number = renter.rent()
    assert renter.destroy(number).json() == {"success": True}
    assert renter.show(number) is None
    assert renter.listed() == []
    again = renter.destroy(number)
    assert (again.status_code, again.json()["error"]) == (404, "no_such_instance")
    assert boxes.made[0].done == ["destroy"]


def test_the_list_comes_in_pages_of_25_with_a_total(renter: Renter) -> None:
    ask = renter.search()[0]["id"]  # bids too low are parked: they do not use it up
    made = [renter.create(ask, price=0.01).json() for _ in range(28)]
    first = renter.page()
    assert (first["instances_found"], first["total_instances"]) == (25, 28)
    second = renter.page(after_token=first["next_token"])
    assert (second["instances_found"], second["next_token"]) == (3, None)
    rows = [*first["instances"], *second["instances"]]
    assert [row["id"] for row in rows] == [each["new_contract"] for each in made]
    assert all(type(row["start_date"]) is float and row["extra_env"] == [] for row in rows)
    assert renter.page(limit="0")["instances_found"] == 5


def test_a_list_is_filtered_by_stored_columns_only(renter: Renter) -> None:
    first, _ = renter.rent(label="one"), renter.rent(label="two")
    one = renter.page(select_filters='{"label": {"eq": "one"}}')
    assert [row["id"] for row in one["instances"]] == [first]
    wrong = renter.page(select_filters='{"dph_total": {"gt": 1}}')
    assert wrong["success"] is False
    assert renter.page(after_token="nonsense")["success"] is False


def test_the_old_list_is_gone(renter: Renter) -> None:
    answer = renter.http.get("/instances/")
    assert (answer.status_code, answer.json()["error"]) == (410, "deprecated_endpoint")


def test_a_wrong_key_is_404_and_none_is_403(vast: Cloud) -> None:
    wrong = Renter(vast, api_key="nobody's").http.get("/users/current/")
    assert (wrong.status_code, wrong.json()["error"]) == (404, "auth_error")
    assert httpx.get(f"{vast.url}/api/v0/users/current/").status_code == 403
    by_query = httpx.get(f"{vast.url}/api/v0/users/current/", params={"api_key": vast.api_key})
    assert by_query.json()["credit"] == 100


def test_the_containers_own_key_ends_its_instance_and_nothing_else(
    renter: Renter, vast: Cloud
) -> None:
    key = renter.create().json()["instance_api_key"]
    other = renter.rent()
    own = renter.listed()[0]
    box = Renter(vast, api_key=key)
    assert box.http.get(f"/instances/{own}/").status_code == 200
    assert box.http.get(f"/instances/{other}/").status_code == 401
    assert box.http.get("/users/current/").status_code == 401
    assert box.http.get("/instances/").status_code == 410
    assert box.page()["error"] == "auth_error"
    assert box.put(own, label="mine").status_code == 401
    assert box.destroy(other).status_code == 401
    assert box.destroy(own).json() == {"success": True}
    assert renter.listed() == [other]
    assert renter.http.get("/audit_logs/").json()[-1]["api_key_id"] == own


def test_a_bid_pays_what_was_bid_and_a_missing_price_the_full_one(
    renter: Renter, vast: Cloud
) -> None:
    spot = renter.search(type="bid")[0]
    assert spot["dph_base"] == spot["min_bid"] < GPU_USD
    bid = renter.create(spot["id"], price=spot["min_bid"]).json()["new_contract"]
    full = renter.create(renter.search(type="bid")[0]["id"]).json()["new_contract"]
    vast.advance(BOOT_S)
    assert renter.show(bid)["dph_base"] == spot["min_bid"]
    assert renter.show(full)["dph_base"] == float(GPU_USD)


def test_a_bid_below_the_floor_parks_an_instance_that_bills(renter: Renter, vast: Cloud) -> None:
    refused = renter.create(price=0.01, cancel_unavail=True)
    assert refused.status_code == 410
    assert vast.meter().alive == 0
    parked = renter.create(price=0.01).json()
    assert parked["success"] is False
    row = renter.show(parked["new_contract"])
    assert (row["cur_state"], row["intended_status"]) == ("stopped", "stopped")
    vast.advance(3600)
    assert vast.meter().billed_usd == pytest.approx(STOPPED_USD, abs=Decimal("1e-20"))


@pytest.mark.parametrize(
    ("order", "error"),
    [
        ({"image": None}, "invalid_args"),
        ({"disk": 5}, "invalid_args"),
        ({"disk": 90000}, "invalid_args"),
        ({"label": "x" * 257}, "invalid_args"),
        ({"onstart": "x" * 4049}, "invalid_args"),
        ({"env": {"A": "x" * 32768}}, "invalid_args"),
        ({"price": 129}, "invalid_price"),
    ],
)
def test_what_vast_does_not_take_it_refuses(
    renter: Renter, vast: Cloud, order: dict[str, object], error: str
) -> None:
    answer = renter.create(renter.search()[0]["id"], **order)
    assert (answer.status_code, answer.json()["error"]) == (400, error)
    assert vast.meter().alive == 0


def test_ssh_keys_are_404_until_there_is_one(renter: Renter, boxes: StubBoxes) -> None:
    assert renter.http.get("/ssh/").status_code == 404
    assert renter.post("/ssh/", ssh_key="/home/me/.ssh/id.pub").status_code == 400
    made = renter.post("/ssh/", ssh_key=KEY).json()["key"]
    assert [key["id"] for key in renter.http.get("/ssh/").json()] == [made["id"]]
    number = renter.rent()
    attached = KEY.replace("IH", "II")
    renter.post(f"/instances/{number}/ssh/", ssh_key=attached)
    assert boxes.made[0].keys == (KEY, attached)
    assert attached in renter.http.get(f"/instances/{number}/ssh/").json()["ssh_keys"]
    assert renter.http.delete(f"/ssh/{made['id']}/").json() == {"success": True}


def test_a_scheduled_delete_fires_in_the_hour_that_holds_its_start(
    renter: Renter, vast: Cloud
) -> None:
    number = renter.rent()
    job = renter.hour(number, START.replace(hour=13, minute=40).timestamp()).json()
    vast.advance(40 * 60)
    assert renter.show(number), "13:00 has come, and 14 s have not passed"
    vast.advance(15)
    assert renter.show(number) is None
    jobs = renter.http.get("/commands/schedule_job/").json()
    assert [each["id"] for each in jobs] == [job["scheduled_job_id"]]
    assert vast.meter().alive == 0


def test_a_schedule_of_the_next_hour_leaves_this_one_alone(renter: Renter, vast: Cloud) -> None:
    number = renter.rent()
    renter.hour(number, START.replace(hour=14, minute=0, second=1).timestamp())
    vast.advance(60 * 60)
    assert renter.show(number)
    vast.advance(9 * 3600)
    elapsed = Decimal(100 * 60 + 14)
    expected = (DISK_USD * elapsed + GPU_USD * (elapsed - Decimal(str(BOOT_S)))) / HOUR
    assert vast.meter().billed_usd == pytest.approx(expected, abs=Decimal("1e-20"))


def test_one_endpoint_has_one_job_and_a_changed_job_never_fires(
    renter: Renter, vast: Cloud
) -> None:
    number = renter.rent()
    start = START.replace(hour=13, minute=0, second=1).timestamp()
    first = renter.hour(number, start).json()["scheduled_job_id"]
    twice = renter.hour(number, start)
    assert (twice.status_code, twice.json()["scheduled_job_id"]) == (422, first)
    path = f"/commands/schedule_job/{first}/"
    assert renter.http.put(path, json={"request_body": {}}).status_code == 200
    vast.advance(9 * 3600)
    assert renter.show(number)
    assert renter.http.delete(path).status_code == 200
    assert renter.hour(number, vast.world.now.timestamp(), min_of_the_hour=30).status_code == 200
    vast.advance(9 * 3600)
    assert renter.show(number), "a minute of the hour stops a job for good"


def test_charges_show_a_day_from_the_next_one_on(renter: Renter, vast: Cloud) -> None:
    number = renter.rent()
    vast.advance(600)
    renter.destroy(number)

    def charges() -> list[dict[str, object]]:
        day = {"gte": START.timestamp() - 86400, "lte": START.timestamp() + 86400}
        filters = httpx.QueryParams({"select_filters": f'{{"day": {day}}}'.replace("'", '"')})
        return list(renter.http.get("/charges/", params=filters).json()["results"])

    assert charges() == []
    vast.advance(86400)
    [charge] = charges()
    assert Decimal(str(charge["amount"])) == pytest.approx(vast.meter().billed_usd)
    assert {item["type"] for item in charge["items"]} >= {"gpu", "disk"}  # type: ignore[attr-defined]
    assert renter.http.get("/charges/").status_code == 400


def test_an_exhausted_credit_stops_everything_and_storage_bills_on(boxes: StubBoxes) -> None:
    with cloud("vast", boxes=boxes, clock=Clock(START, rate=0), credit_usd=Decimal("3.01")) as poor:
        renter = Renter(poor)
        number = renter.rent()
        poor.advance(3600)
        row = renter.show(number)
        assert (row["actual_status"], row["cur_state"]) == ("exited", "stopped")
        assert Decimal("3.01") < poor.meter().billed_usd < Decimal("3.10")
        assert renter.http.get("/users/current/").json()["credit"] < 0
        assert renter.create().json()["error"] == "insufficient_credit"


def test_a_rental_ends_with_the_offer_of_its_host(renter: Renter, vast: Cloud) -> None:
    [offer] = renter.search(duration={"lt": 7200})
    number = renter.create(offer["id"]).json()["new_contract"]
    vast.advance(3600)
    row = renter.show(number)
    assert (row["actual_status"], row["end_date"]) == ("exited", START.timestamp() + 3600)
    assert "has ended" in renter.put(number, state="running").json()["msg"]
    vast.advance(2 * 86400)
    assert renter.show(number) is None


def test_every_answer_bears_the_clouds_own_date(renter: Renter, vast: Cloud) -> None:
    vast.advance(86400)
    assert renter.http.get("/gpu_names/unique/").headers["date"] == "Sun, 22 Nov 2026 12:20:00 GMT"
