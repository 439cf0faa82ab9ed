"""Every knob of the emulated Prime Intellect does what its sentence says, in rows and dollars."""

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clouds.prime.account import TEAM_ID
from tests.clouds.prime.renter import Renter
from tests.clouds.prime.world import DELETING_S
from tests.clouds.serve import Cloud
from tests.clouds.stub import StubBoxes
from tests.clouds.world import BOOT_S

USD = Decimal("8.76")  # per hour, 4xH100 at datacrunch


def spent(prime: Cloud, seconds: float) -> Decimal:
    """What everything costs while this time passes, to a nanodollar."""
    before = prime.meter().billed_usd
    prime.advance(seconds)
    return round(prime.meter().billed_usd - before, 9)


def test_every_knob_is_tested_here(prime: Cloud) -> None:
    tested = set(re.findall(r'fault\(\s*"(\w+)"', Path(__file__).read_text()))
    assert tested == set(prime.world.knobs.faults)


# On the wire.


def test_a_lost_answer_has_made_a_pod(prime: Cloud, renter: Renter) -> None:
    order = renter.order()
    prime.fault("answer_lost")
    with pytest.raises(httpx.RemoteProtocolError):
        renter.http.post("/pods/", json=order)
    assert len(renter.listed()) == 1
    assert prime.meter().alive == 1


def test_an_answer_after_the_clients_patience(prime: Cloud, renter: Renter) -> None:
    order = renter.order()
    prime.fault("slow", endpoint="create", seconds=30)
    with pytest.raises(httpx.ReadTimeout):
        renter.http.post("/pods/", json=order, timeout=0.2)
    assert prime.meter().alive == 1


def test_a_delete_that_answers_500_and_then_200(prime: Cloud, renter: Renter) -> None:
    number = renter.rent()
    prime.fault("server_error", endpoint="destroy", status=500, body="json", times=1)
    assert [renter.delete(number).status_code for _ in range(2)] == [500, 200]


@pytest.mark.parametrize("after", [None, 10])
def test_429_with_and_without_retry_after(prime: Cloud, renter: Renter, after: int | None) -> None:
    prime.fault("rate_limited", endpoint="list", retry_after_s=after)
    answer = renter.http.get("/pods")
    assert (answer.status_code, answer.json()) == (429, {"detail": "Too many requests."})
    assert answer.headers.get("retry-after") == (None if after is None else "10")


def test_html_a_redirect_and_no_api_at_all(prime: Cloud, renter: Renter) -> None:
    prime.fault("html", endpoint="list")
    assert renter.http.get("/pods").headers["content-type"].startswith("text/html")
    prime.fault("redirects", endpoint="show")
    moved = renter.http.get("/pods/abc?x=1")
    assert (moved.status_code, moved.text) == (307, "")
    assert moved.headers["location"] == "/api/v1/pods/abc/?x=1"
    prime.fault("down")
    with pytest.raises(httpx.RemoteProtocolError):
        renter.http.get("/pods")


def test_dates_that_are_wrong_or_old(prime: Cloud, renter: Renter) -> None:
    prime.fault("date_skew_s", seconds=3600)
    assert "13:20:00" in renter.http.get("/pods").headers["date"]
    prime.fault("stale_date", age_s=600)
    headers = renter.http.get("/pods").headers
    assert "13:10:00" in headers["date"]
    assert headers["age"] == "600"


# The account.


def test_a_key_of_another_account(prime: Cloud, renter: Renter) -> None:
    number, mine = renter.rent(), renter.http.get("/user/whoami").json()["data"]["id"]
    prime.fault("key_of_other_account")
    assert renter.http.get("/user/whoami").json()["data"]["id"] != mine
    assert renter.listed() == []
    assert renter.http.get(f"/pods/{number}").status_code == 404
    assert renter.delete(number).status_code == 404
    assert spent(prime, 3600) == USD


def test_a_key_revoked_or_without_scopes(prime: Cloud, renter: Renter) -> None:
    prime.fault("key_scopes", scopes="instances:read")
    assert renter.http.get("/pods").status_code == 200
    assert renter.http.post("/pods", json={}).status_code == 403
    prime.fault("key_revoked")
    assert renter.http.get("/pods").status_code == 401


def test_no_credit_deletes_the_pods_and_refuses_with_402(prime: Cloud, renter: Renter) -> None:
    renter.rent()
    prime.fault("credit_zero")
    assert (renter.listed(), prime.meter().alive) == ([], 0)
    assert renter.create().status_code == 402
    assert spent(prime, 3600) == 0


def test_a_limit_of_instances(prime: Cloud, renter: Renter) -> None:
    prime.fault("instance_limit", limit=1)
    renter.rent()
    answer = renter.create()
    assert answer.json() == {"detail": "Maximum number of instances reached. Limit: 1"}


# The market.


def test_an_empty_market_once(prime: Cloud, renter: Renter) -> None:
    prime.fault("search_empty")
    assert renter.http.get("/availability/gpus").json() == {"items": [], "totalCount": 0}
    assert renter.offers() != []


def test_euros_and_dearer_offers(prime: Cloud, renter: Renter) -> None:
    prime.fault("currency_eur")
    assert {offer["prices"]["currency"] for offer in renter.offers()} == {"EUR"}
    prime.fault("offers_up", factor=2)
    assert renter.offer()["prices"]["onDemand"] == float(2 * USD)
    assert renter.create().json()["priceHr"] == float(2 * USD)


@pytest.mark.parametrize("status", [400, 409, 503])
def test_capacity_that_is_gone(prime: Cloud, renter: Renter, status: int) -> None:
    prime.fault("offer_gone", status=status)
    answer = renter.create()
    assert answer.status_code == status
    assert "currently unavailable" in answer.json()["detail"]
    assert prime.meter().alive == 0


def test_the_other_shape_of_a_422(prime: Cloud, renter: Renter) -> None:
    prime.fault("validation_shape")
    said = renter.create(foo=1).json()
    assert said == {"errors": [{"param": "pod.foo", "details": "Extra inputs are not permitted"}]}


def test_a_max_price_wanted_everywhere(prime: Cloud, renter: Renter) -> None:
    prime.fault("max_price_needed")
    assert "max_price" in renter.create(maxPrice=None).json()["detail"]
    assert renter.create(maxPrice=0).status_code == 200


# Lists and rows.


def test_lists_that_lag_are_empty_or_flicker(prime: Cloud, renter: Renter) -> None:
    prime.fault("list_lag_s", seconds=45)
    number = renter.rent()
    assert renter.listed() == []
    prime.advance(45)
    assert renter.listed() == [number]
    prime.fault("list_empty", times=1)
    assert [len(renter.listed()) for _ in range(2)] == [0, 1]
    prime.fault("flicker")
    assert [len(renter.listed()) for _ in range(3)] == [0, 1, 0]


def test_pages_that_fail_totals_that_lie_and_rows_twice(prime: Cloud, renter: Renter) -> None:
    renter.rent()
    prime.fault("list_page_fails", page=2)
    query = {"offset": 1, "limit": 1}
    assert renter.http.get("/pods", params=query).status_code == 500
    prime.fault("total_wrong", by=3)
    assert renter.http.get("/pods").json()["total_count"] == 4
    prime.fault("list_twins")
    assert len(renter.listed()) == 2


def test_pods_that_a_list_or_a_get_hides(prime: Cloud, renter: Renter) -> None:
    order = renter.order() | {"team": {"teamId": TEAM_ID}}
    number = renter.http.post("/pods", json=order).json()["id"]
    prime.fault("team_pods_hidden")
    assert renter.listed() == []
    assert renter.show(number)["teamId"] == TEAM_ID
    prime.fault("pod_404", times=1)
    assert [renter.http.get(f"/pods/{number}").status_code for _ in range(2)] == [404, 200]


@pytest.mark.parametrize(
    ("shape", "text", "ip"),
    [
        ("list", ["root@192.0.2.1 -p 22"], ["192.0.2.1"]),
        ("list_null", [None], [None]),
        ("nodes", ["root@192.0.2.1 -p 22", None], ["192.0.2.1", None]),
        ("null", None, "192.0.2.1"),
        ("placeholder", "root@ -p 22", None),
        ("no_port", "root@192.0.2.1", "192.0.2.1"),
        ("with_ssh", "ssh root@192.0.2.1 -p 22", "192.0.2.1"),
    ],
)
def test_the_shapes_of_a_connection(
    prime: Cloud, renter: Renter, shape: str, text: Any, ip: Any
) -> None:
    number = renter.rent()
    prime.fault("ssh_shape", shape=shape)
    pod = renter.show(number)
    assert (pod["sshConnection"], pod["ip"]) == (text, ip)
    assert pod["primePortMapping"][0]["usedBy"] == "SSH"


def test_odd_values_in_rows(prime: Cloud, renter: Renter) -> None:
    number = renter.rent()
    prime.fault("fractional_numbers")
    assert renter.show(number)["installationProgress"] == 40.5
    prime.fault("null_fields", fields="priceHr")
    assert renter.show(number)["priceHr"] is None


# The life of a pod.


def test_pods_that_come_late_never_or_wrong(prime: Cloud, renter: Renter) -> None:
    prime.fault("boot_s", seconds=900)
    number = renter.create().json()["id"]
    assert spent(prime, 300) == 0, "PROVISIONING is free"
    assert spent(prime, 300) == round(USD / 12, 9), "PENDING is not"
    prime.advance(300)
    assert renter.show(number)["status"] == "ACTIVE"
    prime.clear()
    prime.fault("stuck", status="PENDING")
    assert renter.show(renter.rent())["status"] == "PENDING"
    prime.clear()
    prime.fault("start_fails")
    assert renter.show(renter.rent())["status"] == "ERROR"
    prime.clear()
    prime.fault("installation_error")
    pod = renter.show(renter.rent())
    assert (pod["status"], pod["installationStatus"]) == ("ACTIVE", "ERROR")
    assert pod["installationFailure"]


def test_machines_that_are_not_what_was_bought(
    prime: Cloud, renter: Renter, boxes: StubBoxes
) -> None:
    prime.fault("wrong_gpu", where="both")
    prime.fault("ssh_refused")
    prime.fault("box_cut_off")
    number = renter.rent()
    assert boxes.made[0].spec.gpu_count == renter.show(number)["gpuCount"] == 3
    assert boxes.made[0].done == ["cut off", "refuse ssh"]


def test_a_price_above_the_offer_is_in_the_answer_already(prime: Cloud, renter: Renter) -> None:
    prime.fault("price_up", factor=1.25)
    assert renter.create().json()["priceHr"] == float(USD * 5 / 4)
    prime.advance(BOOT_S)
    assert spent(prime, 3600) == USD * 5 / 4


def test_restarts_and_reboots(prime: Cloud, renter: Renter, boxes: StubBoxes) -> None:
    renter.rent()
    prime.fault("container_restart")
    prime.fault("host_reboot")
    assert boxes.made[0].done == ["restart", "reboot"]


@pytest.mark.parametrize("how", ["STOPPED", "TERMINATED"])
def test_a_spot_pod_that_is_lost(prime: Cloud, renter: Renter, boxes: StubBoxes, how: str) -> None:
    prime.fault("outbid", after_s=300, how=how)
    number = renter.rent()
    prime.advance(300)
    if how == "TERMINATED":
        assert (renter.listed(), prime.meter().alive) == ([], 0)
        return
    assert renter.show(number)["status"] == "STOPPED"
    assert spent(prime, 3600) == USD, "without a price of its own, stopped costs in full"
    prime.fault("resume_after_s", seconds=60)
    prime.advance(60)
    assert renter.show(number)["status"] == "ACTIVE"
    assert boxes.made[0].done == ["halt", "boot"]


def test_what_others_do_in_the_console(prime: Cloud, renter: Renter) -> None:
    number = renter.rent()
    prime.fault("status_word", word="HIBERNATED")
    assert renter.show(number)["status"] == "HIBERNATED"
    assert spent(prime, 3600) == USD
    prime.fault("relabel", label="b")
    assert renter.show(number)["name"] == "b"
    prime.fault("twin_label")
    prime.fault("id_reuse", label="theirs")
    prime.fault("console_destroy", instance=number)
    rows = renter.http.get("/pods").json()["data"]
    assert sorted((row["name"], row["id"] == number) for row in rows) == [
        ("b", False),
        ("theirs", True),
    ]


# The end.


def test_deletes_that_lie_hide_or_say_404(prime: Cloud, renter: Renter) -> None:
    number = renter.rent()
    prime.fault("delete_lies", times=1)
    assert renter.delete(number).status_code == 200
    assert renter.show(number)["status"] == "ACTIVE"
    prime.fault("reappear_after_s", seconds=600)
    renter.delete(number)
    assert renter.http.get(f"/pods/{number}").status_code == 404
    assert spent(prime, 600) == USD / 6
    assert renter.listed() == [number]
    prime.fault("delete_404", times=1)
    assert renter.delete(number).status_code == 404
    prime.advance(DELETING_S)
    assert prime.meter().alive == 0


def test_deleting_for_an_hour_bills(prime: Cloud, renter: Renter) -> None:
    number = renter.rent()
    prime.fault("deleting_s", seconds=3600)
    prime.fault("tail_s", seconds=60)
    prime.fault("terminated_listed_s", seconds=600)
    renter.delete(number)
    assert spent(prime, 3600) == USD
    assert renter.show(number)["status"] == "TERMINATED"
    assert spent(prime, 3600) == round(USD / 60, 9)
    assert renter.listed() == []


def test_history_comes_late(prime: Cloud, renter: Renter) -> None:
    number = renter.rent()
    prime.fault("history_lag_s", seconds=150)
    renter.delete(number)
    prime.advance(DELETING_S + 149)
    assert renter.http.get("/pods/history").json()["total_count"] == 0
    prime.advance(1)
    assert renter.http.get("/pods/history").json()["total_count"] == 1
