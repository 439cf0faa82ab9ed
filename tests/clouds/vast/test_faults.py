"""Every knob of the emulated Vast.ai does what its sentence says: wire, account, market, lists."""

import re
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from tests.clouds.serve import Cloud
from tests.clouds.vast.renter import (
    DISK_USD,
    GPU_USD,
    RUNNING_USD,
    START,
    STOPPED_USD,
    Renter,
    per_hour,
    spent,
)


def test_every_knob_is_tested_here(vast: Cloud) -> None:
    """Here, or in the file beside this one."""
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    tested = set(re.findall(r'fault\(\s*"(\w+)"', "".join(texts)))
    assert tested == set(vast.world.knobs.faults)


# On the wire.


def test_a_lost_answer_before_and_after_the_effect(vast: Cloud, renter: Renter) -> None:
    ask = renter.search()[0]["id"]
    vast.fault("answer_lost", when="before")
    with pytest.raises(httpx.RemoteProtocolError):
        renter.create(ask)
    assert vast.meter().alive == 0
    vast.fault("answer_lost", when="after")
    with pytest.raises(httpx.RemoteProtocolError):
        renter.create(ask)
    assert vast.meter().alive == 1
    assert len(renter.listed()) == 1, "only once"


@pytest.mark.parametrize("body", ["text", "html", "json"])
def test_an_error_of_the_server_before_and_after_the_effect(
    vast: Cloud, renter: Renter, body: str
) -> None:
    number = renter.rent()
    vast.fault("server_error", endpoint="destroy", times=1, status=503, body=body)
    assert renter.destroy(number).status_code == 503
    assert vast.meter().alive == 1
    vast.fault("server_error", endpoint="destroy", when="after")
    assert renter.destroy(number).status_code == 502
    assert vast.meter().alive == 0


def test_a_page_of_html(vast: Cloud, renter: Renter) -> None:
    vast.fault("html", endpoint="create", when="after")
    answer = renter.create()
    assert answer.status_code == 200
    assert answer.text.startswith("<!DOCTYPE html>")
    assert vast.meter().alive == 1


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ("text", "API requests too frequent"),
        ("threshold", "API requests too frequent: endpoint threshold=4.5"),
        ("detail", '{"detail": "API requests too frequent"}'),
    ],
)
def test_too_many_requests_in_each_shape(
    vast: Cloud, renter: Renter, shape: str, text: str
) -> None:
    vast.fault("rate_limited", endpoint="list", shape=shape, retry_after_s=61)
    answer = renter.http.get(f"{vast.url}/api/v1/instances/")
    assert (answer.status_code, answer.text) == (429, text)
    assert answer.headers["retry-after"] == "61"


def test_too_many_requests_as_json_with_its_own_retry_after(vast: Cloud, renter: Renter) -> None:
    vast.fault("rate_limited", shape="json", retry_after_s=5, times=1)
    said = renter.http.get("/users/current/")
    assert (said.status_code, said.json()["retry_after"]) == (429, 5)
    assert renter.http.get("/users/current/").status_code == 200


def test_a_slow_answer_has_its_effect_first(vast: Cloud, renter: Renter) -> None:
    ask = renter.search()[0]["id"]
    vast.fault("slow", endpoint="create", seconds=30)
    with pytest.raises(httpx.ReadTimeout):
        renter.http.put(f"/asks/{ask}/", json={"image": "x", "disk": 20}, timeout=0.2)
    assert vast.meter().alive == 1


@pytest.mark.parametrize("how", ["drop", "hang", "503"])
def test_the_whole_api_down(vast: Cloud, renter: Renter, how: str) -> None:
    vast.fault("down", how=how)
    if how == "503":
        assert renter.http.get("/users/current/").status_code == 503
    else:
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadTimeout)):
            renter.http.get("/users/current/", timeout=0.2)
    assert httpx.get(vast.meter_url).status_code == 200
    vast.clear("down")
    assert renter.http.get("/users/current/").status_code == 200


def test_a_scheduler_that_is_down_with_the_api_ends_nothing(vast: Cloud, renter: Renter) -> None:
    number = renter.rent()
    renter.hour(number, START.timestamp() + 3600)
    vast.fault("down", scheduler_too=True)
    vast.advance(3600)
    assert vast.meter().alive == 1
    vast.fault("down")
    vast.advance(3600)
    assert vast.meter().alive == 0


def test_a_date_that_is_off_and_one_from_a_cache(vast: Cloud, renter: Renter) -> None:
    vast.fault("date_skew_s", seconds=-3600)
    date = renter.http.get("/users/current/").headers["date"]
    assert date == "Sat, 21 Nov 2026 11:20:00 GMT"
    vast.clear()
    vast.fault("stale_date", age_s=600)
    headers = renter.http.get("/users/current/").headers
    assert (headers["date"], headers["age"]) == ("Sat, 21 Nov 2026 12:10:00 GMT", "600")


# The account.


def test_a_key_of_another_account_sees_none_of_the_instances(vast: Cloud, renter: Renter) -> None:
    number, mine = renter.rent(), renter.http.get("/users/current/").json()["id"]
    vast.fault("key_of_other_account")
    assert renter.http.get("/users/current/").json()["id"] != mine
    assert (renter.listed(), renter.show(number)) == ([], None)
    assert renter.destroy(number).status_code == 404
    assert spent(vast, 3600) == per_hour(RUNNING_USD)


def test_a_revoked_key_is_401_and_the_containers_own_still_works(
    vast: Cloud, renter: Renter
) -> None:
    made = renter.create().json()
    vast.fault("key_revoked")
    assert renter.http.get("/users/current/").status_code == 401
    box = Renter(vast, api_key=made["instance_api_key"])
    assert box.destroy(made["new_contract"]).status_code == 200


def test_a_key_without_a_scope(vast: Cloud, renter: Renter) -> None:
    vast.fault("key_scopes", scopes="misc, instance_read")
    assert renter.page()["success"]
    assert renter.create().status_code == 401
    assert renter.http.get("/users/current/").status_code == 401
    assert vast.meter().alive == 0


def test_404_auth_error_for_a_right_key_destroys_nothing(vast: Cloud, renter: Renter) -> None:
    number = renter.rent()
    vast.fault("auth_404", endpoint="destroy")
    answer = renter.destroy(number)
    assert (answer.status_code, answer.json()["error"]) == (404, "auth_error")
    assert vast.meter().alive == 1


def test_no_credit_stops_everything_and_refuses_every_purchase(vast: Cloud, renter: Renter) -> None:
    number = renter.rent()
    vast.fault("credit_zero")
    assert renter.show(number)["actual_status"] == "exited"
    assert renter.http.get("/users/current/").json()["credit"] == 0
    assert renter.create().json()["error"] == "insufficient_credit"
    assert spent(vast, 3600) == per_hour(STOPPED_USD)


def test_a_card_that_defeats_the_cap_of_the_credit(vast: Cloud, renter: Renter) -> None:
    assert renter.http.get("/users/current/").json()["autobill_threshold"] is None
    vast.fault("autobilling", below_usd=10)
    user = renter.http.get("/users/current/").json()
    assert (user["has_billing"], user["autobill_threshold"]) == (True, 10)


def test_the_documented_intervals(vast: Cloud, renter: Renter) -> None:
    first, second = renter.rent(), renter.rent()
    vast.fault("rate_limits")
    assert renter.destroy(first).status_code == 200
    assert renter.destroy(second).status_code == 429
    vast.advance(3)
    assert renter.destroy(second).status_code == 200


# The market.


def test_an_empty_search_once(vast: Cloud, renter: Renter) -> None:
    vast.fault("search_empty")
    assert renter.search() == []
    assert renter.search() != []


def test_searches_that_vary_ignore_numbers_or_are_used_up(vast: Cloud, renter: Renter) -> None:
    every = {offer["id"] for offer in renter.search()}
    vast.fault("search_varies")
    halves = [{offer["id"] for offer in renter.search()} for _ in range(2)]
    assert halves[0] | halves[1] == every
    assert not halves[0] & halves[1]
    vast.clear()
    vast.fault("filters_ignored")
    assert min(offer["reliability"] for offer in renter.search()) < 0.98
    vast.clear()
    vast.fault("search_quota")
    answer = renter.post("/bundles/", gpu_name={"eq": "H100 SXM"})
    assert (answer.status_code, answer.json()["error"]) == (429, "search_quota_exceeded")
    midnight = datetime(2026, 11, 22, tzinfo=UTC).timestamp()
    assert float(answer.headers["x-ratelimit-reset"]) == midnight


def test_an_offer_whose_price_leaves_the_storage_out(vast: Cloud, renter: Renter) -> None:
    vast.fault("offer_excludes_storage")
    offer = renter.search()[0]
    assert offer["dph_total"] == float(GPU_USD)
    number = renter.rent()
    assert renter.show(number)["dph_total"] == pytest.approx(float(RUNNING_USD))


def test_offers_that_become_dearer(vast: Cloud, renter: Renter) -> None:
    vast.fault("offers_up", factor=2)
    assert renter.search()[0]["dph_base"] == float(2 * GPU_USD)
    renter.rent()
    assert spent(vast, 3600) == per_hour(2 * GPU_USD + DISK_USD)


@pytest.mark.parametrize("status", [400, 404, 410])
def test_an_offer_that_is_gone(vast: Cloud, renter: Renter, status: int) -> None:
    vast.fault("offer_gone", status=status, times=1)
    answer = renter.create()
    assert answer.status_code == status
    assert "no_such_ask" in answer.json()["msg"]
    assert vast.meter().alive == 0
    assert renter.create().status_code == 200


def test_a_refusal_that_made_an_instance(vast: Cloud, renter: Renter) -> None:
    vast.fault("create_refused_made")
    answer = renter.create(label="a", cancel_unavail=True)
    assert (answer.status_code, answer.json()["success"]) == (400, False)
    row = renter.show(answer.json()["new_contract"])
    assert (row["label"], row["cur_state"]) == ("a", "stopped")
    assert spent(vast, 3600) == per_hour(STOPPED_USD)


def test_a_create_that_was_replayed_says_gone_and_bills(vast: Cloud, renter: Renter) -> None:
    vast.fault("create_replayed")
    answer = renter.create(label="a")
    assert "no_such_ask" in answer.json()["msg"]
    assert "new_contract" not in answer.json()
    assert [line.label for line in vast.meter().instances if line.alive] == ["a"]


# Lists.


def test_a_list_that_lags_behind_the_create(vast: Cloud, renter: Renter) -> None:
    vast.fault("list_lag_s", seconds=45)
    number = renter.create().json()["new_contract"]
    assert renter.listed() == []
    assert renter.show(number)["id"] == number
    vast.advance(45)
    assert renter.listed() == [number]


def test_an_empty_list_and_one_that_flickers(vast: Cloud, renter: Renter) -> None:
    number = renter.rent()
    vast.fault("list_empty", times=1)
    assert (renter.page()["total_instances"], renter.page()["total_instances"]) == (0, 1)
    vast.fault("flicker", instance=number)
    assert [len(renter.listed()) for _ in range(4)] == [0, 1, 0, 1]
    assert vast.meter().alive == 1


def test_a_page_that_fails_a_total_that_is_wrong_and_a_row_twice(
    vast: Cloud, renter: Renter
) -> None:
    ask = renter.search()[0]["id"]
    for _ in range(26):
        renter.create(ask, price=0.01)  # parked: the offer is not used up
    vast.fault("list_page_fails", page=2)
    token = renter.page()["next_token"]
    second = {"after_token": token}
    url = f"{vast.url}/api/v1/instances/"
    assert renter.http.get(url, params=second).status_code == 500
    vast.clear()
    vast.fault("total_wrong", by=-1)
    assert renter.page()["total_instances"] == 25
    vast.clear()
    vast.fault("list_twins")
    assert renter.page()["total_instances"] == 27


def test_a_delete_that_only_hides(vast: Cloud, renter: Renter) -> None:
    number = renter.rent()
    vast.fault("reappear_after_s", seconds=600)
    assert renter.destroy(number).json() == {"success": True}
    assert (renter.listed(), renter.show(number)) == ([], None)
    assert renter.destroy(number).status_code == 404
    assert spent(vast, 600) == per_hour(RUNNING_USD / 6)
    assert renter.listed() == [number]
    renter.destroy(number)
    assert vast.meter().alive == 0


def test_fields_of_a_row_that_are_null(vast: Cloud, renter: Renter) -> None:
    number = renter.rent()
    vast.fault("null_fields", fields="start_date, dph_total", instance=number)
    row = renter.show(number)
    assert (row["start_date"], row["dph_total"], row["id"]) == (None, None, number)
