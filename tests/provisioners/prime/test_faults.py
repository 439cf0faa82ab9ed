"""Every fault of the emulated Prime Intellect, met by the adapter: what it says, what it costs.

The dollars are the cloud's own.  What is rented costs $8.76/h; the end of it is proven as the
keeper does it, and "$0.00" is what was billed from the first DELETE on.
"""

import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from gpurun import web
from gpurun.errors import (
    AccountRefused,
    CreateFailedButMade,
    CreateUnclear,
    NoCapacity,
    NoOffer,
    ProviderError,
    ProviderUnreachable,
)
from gpurun.hardware.models import is_the
from gpurun.model import InstanceState
from provisioners.prime import Prime
from provisioners.prime.access import Access
from provisioners.prime.api import ENDPOINTS
from tests.clouds.prime.account import TEAM_ID
from tests.clouds.serve import Cloud
from tests.clouds.stub import StubBoxes
from tests.provisioners.prime.renter import LABEL, USD, Renter, adapter

FREE, CENT = Decimal("0.00"), Decimal("0.01")


def test_every_knob_is_met_here(api: Cloud) -> None:
    met = set(re.findall(r'fault\(\s*"(\w+)"', Path(__file__).read_text()))
    assert met == set(api.world.knobs.faults)


# On the wire.


def test_a_lost_answer_is_unclear_one_pod_is_found_by_its_label_and_ended(
    api: Cloud, renter: Renter
) -> None:
    order = renter.order()
    api.fault("answer_lost")
    with pytest.raises(CreateUnclear, match=f"a pod named {LABEL} may exist"):
        renter.prime.create(order)
    [found] = renter.prime.instances()
    assert (found.label, len(api.meter().instances)) == (LABEL, 1)
    assert renter.end(found.id) == FREE


def test_an_order_that_never_arrived_costs_nothing(api: Cloud, renter: Renter) -> None:
    order = renter.order()
    api.fault("answer_lost", when="before")
    with pytest.raises(CreateUnclear):
        renter.prime.create(order)
    assert (renter.labels(), renter.costs(3600)) == ([], FREE)


@pytest.mark.parametrize("body", ["text", "html", "json"])
def test_an_error_of_a_gateway_after_creating_is_unclear(
    api: Cloud, renter: Renter, body: str
) -> None:
    order = renter.order()
    api.fault("server_error", endpoint="create", status=502, when="after", body=body)
    with pytest.raises(CreateUnclear):
        renter.prime.create(order)
    assert renter.end(renter.prime.instances()[0].id) == FREE


def test_a_page_instead_of_an_answer_is_no_answer(api: Cloud, renter: Renter) -> None:
    order = renter.order()
    api.fault("html", endpoint="create", when="after", times=1)
    with pytest.raises(CreateUnclear):
        renter.prime.create(order)
    number = renter.prime.instances()[0].id
    api.fault("html", endpoint="list", times=1)
    with pytest.raises(ProviderError, match="no sensible answer"):
        renter.prime.instances()
    api.fault("html", endpoint="destroy", times=1)
    with pytest.raises(ProviderError):
        renter.prime.destroy(number)
    assert renter.end(number) == FREE


def test_a_delete_that_fails_is_asked_again_and_bills_until_then(
    api: Cloud, renter: Renter
) -> None:
    number = renter.rent()
    api.fault("server_error", endpoint="destroy", status=500, body="json", times=3)
    assert renter.end(number) == Decimal("0.15")  # three rounds of 20 s


def test_too_many_requests_is_said_and_a_refused_order_made_nothing(
    api: Cloud, renter: Renter
) -> None:
    order = renter.order()
    api.fault("rate_limited", endpoint="list", times=1)
    with pytest.raises(ProviderUnreachable, match="fewer requests"):
        renter.prime.instances()
    api.fault("rate_limited", endpoint="create", retry_after_s=10, times=1)
    with pytest.raises(NoCapacity, match="nothing was made"):
        renter.prime.create(order)
    assert renter.costs(3600) == FREE


@pytest.mark.parametrize("after_s", [None, 2])
def test_patience_asks_again_but_orders_once(
    api: Cloud, renter: Renter, after_s: int | None
) -> None:
    order = renter.order()
    http = web.client("prime", api.url, api.api_key, ENDPOINTS, renter.clock)
    patient = Prime(Access(api.api_key, "the test"), http, is_the)
    for word in ("search", "list", "show", "destroy", "user"):
        api.fault("rate_limited", endpoint=word, retry_after_s=after_s, times=1)
        if word == "search":
            assert list(patient.offers(order.need))
        elif word == "user":
            assert patient.account()
        elif word == "list":
            assert patient.instances() == []
        else:
            patient.destroy("never-was")
        api.clear()
    api.fault("server_error", endpoint="create", status=503, when="after", times=1)
    with pytest.raises(CreateUnclear):
        patient.create(order)
    assert len(api.meter().instances) == 1
    assert renter.end(patient.instances()[0].id) == FREE


def test_a_slow_answer_is_an_answer(api: Cloud, renter: Renter) -> None:
    order = renter.order()
    api.fault("slow", endpoint="create", seconds=1)
    assert renter.end(renter.rent(order)) == FREE


def test_an_api_that_is_down_tells_nothing_and_an_order_is_unclear(
    api: Cloud, renter: Renter
) -> None:
    order, number = renter.order(label="gpurun-b"), renter.rent()
    api.fault("down")
    with pytest.raises(ProviderUnreachable):
        renter.prime.instances()
    with pytest.raises(CreateUnclear):
        renter.prime.create(order)
    with pytest.raises(ProviderUnreachable):
        renter.prime.destroy(number)
    assert renter.costs(3600) == USD, "an outage costs the outage"
    api.clear()
    assert renter.end(number) == FREE


def test_a_host_where_nobody_listens_was_sent_nothing(api: Cloud, renter: Renter) -> None:
    order = renter.order()
    nowhere = adapter(api, renter.clock, url="http://127.0.0.1:9")
    with pytest.raises(NoCapacity, match="cannot be reached, nothing was made"):
        nowhere.create(order)


def test_dates_are_observed_but_not_those_of_a_cache(api: Cloud) -> None:
    seen = []

    class Watching:
        def observe(self, date: object) -> None:
            seen.append(date)

    prime = adapter(api, Watching())
    api.fault("date_skew_s", seconds=3600)
    prime.account()
    assert [date.hour for date in seen] == [13]
    api.fault("stale_date", age_s=600)
    prime.account()
    assert len(seen) == 1


# The account.


def test_another_accounts_key_proves_no_death(api: Cloud, renter: Renter) -> None:
    number, ours = renter.rent(), renter.prime.account()
    api.fault("key_of_other_account")
    assert renter.prime.account() != ours
    assert renter.prime.instances() == []
    assert renter.costs(3600) == USD
    api.clear()
    assert renter.end(number) == FREE


def test_a_revoked_key_is_told_and_an_order_with_it_made_nothing(
    api: Cloud, renter: Renter
) -> None:
    order = renter.order()
    api.fault("key_revoked")
    for ask in (renter.prime.account, renter.prime.instances, lambda: renter.prime.destroy("a")):
        with pytest.raises(ProviderError, match="run `gpurun auth prime`"):
            ask()
    with pytest.raises(AccountRefused, match="nothing was made: 401"):
        renter.prime.create(order)
    assert renter.costs(3600) == FREE


def test_a_key_without_a_permission_names_it(api: Cloud, renter: Renter) -> None:
    order = renter.order()
    api.fault("key_scopes", scopes="user:read, instances:read")
    assert [r.says for r in renter.prime.remarks() if not r.ok] == [
        "the key lacks Availability (read), Instances (read and write): set it in the dashboard "
        "(Settings, API Keys)"
    ]
    with pytest.raises(ProviderError, match="does not let this key search the market"):
        renter.offers()
    with pytest.raises(AccountRefused, match="Instances"):
        renter.prime.create(order)
    assert renter.prime.credit_usd() is None
    assert renter.costs(3600) == FREE


def test_without_credit_pods_vanish_and_none_is_sold(api: Cloud, renter: Renter) -> None:
    order, number = renter.order(label="gpurun-b"), renter.rent()
    api.fault("credit_zero")
    assert renter.prime.instance(number) is None
    with pytest.raises(AccountRefused, match=r"402 .*add funds"):
        renter.prime.create(order)
    assert renter.costs(3600) == FREE


def test_a_limit_of_instances_is_said(api: Cloud, renter: Renter) -> None:
    order = renter.order()
    api.fault("instance_limit", limit=0)
    with pytest.raises(AccountRefused, match="Maximum number of instances"):
        renter.prime.create(order)
    assert renter.costs(3600) == FREE


# The market.


def test_an_empty_market_is_believed_when_it_is_said_twice(api: Cloud, renter: Renter) -> None:
    api.fault("search_empty", times=1)
    assert renter.offers()
    api.fault("search_empty", times=2)
    assert renter.offers() == []


def test_euros_are_not_taken_for_dollars(api: Cloud, renter: Renter) -> None:
    api.fault("currency_eur")
    with pytest.raises(NoOffer, match="priced in EUR"):
        renter.offers()


def test_a_price_that_rose_after_the_search_buys_nothing(api: Cloud, renter: Renter) -> None:
    fixed, variable = renter.order(), renter.order(renter.offer("massedcompute"))
    api.fault("offers_up", factor=1.5)
    with pytest.raises(NoCapacity):  # the server keeps maxPrice where a price is variable
        renter.prime.create(variable)
    with pytest.raises(CreateFailedButMade, match=r"costs \$13.14/h, at most \$8.9352/h") as made:
        renter.prime.create(fixed)
    assert renter.end(made.value.instance_id) == FREE


@pytest.mark.parametrize("status", [400, 409, 503])
def test_a_sold_out_offer_made_nothing(api: Cloud, renter: Renter, status: int) -> None:
    order = renter.order()
    api.fault("offer_gone", status=status)
    with pytest.raises(NoCapacity, match="currently unavailable"):
        renter.prime.create(order)
    assert renter.costs(3600) == FREE


@pytest.mark.parametrize("shape", ["errors", "detail"])
def test_a_body_that_is_refused_says_which_field(api: Cloud, renter: Renter, shape: str) -> None:
    order = renter.order()
    echo = order.offer.echo.replace('"gpuCount": 4', '"gpuCount": 4, "foo": 1')
    api.fault("validation_shape", shape=shape)
    with pytest.raises(NoCapacity, match=r"422 .*pod.foo: Extra inputs"):
        renter.prime.create(replace(order, offer=replace(order.offer, echo=echo)))
    assert renter.costs(3600) == FREE


def test_redirects_are_followed_but_never_for_an_order(api: Cloud, renter: Renter) -> None:
    api.fault("redirects")
    number = renter.rent()
    assert renter.end(number) == FREE
    assert len(api.meter().instances) == 1


def test_a_max_price_is_always_sent(api: Cloud, renter: Renter) -> None:
    api.fault("max_price_needed")
    assert renter.end(renter.rent()) == FREE


# Lists and rows.


def test_a_pod_that_is_listed_late_is_found_when_it_is(api: Cloud, renter: Renter) -> None:
    api.fault("list_lag_s", seconds=45)
    number = renter.rent()
    assert renter.labels() == []
    assert renter.row(number).label == LABEL
    renter.wait(45)
    assert renter.labels() == [LABEL]
    assert renter.end(number) == FREE


def test_an_empty_list_is_no_death(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("list_empty")
    api.fault("delete_lies", times=1)
    assert renter.prime.instances() == []
    # The first DELETE is a lie; the row by id beats the lists, so there is a second one.
    assert renter.end(number) == Decimal("0.05")


def test_a_list_that_is_not_whole_is_an_error(api: Cloud, renter: Renter) -> None:
    renter.rent()
    api.fault("list_page_fails", page=1)
    with pytest.raises(ProviderUnreachable):
        renter.prime.instances()
    api.clear()
    for by in (1, -1):
        api.fault("total_wrong", by=by)
        with pytest.raises(ProviderError, match="not complete"):
            renter.prime.instances()
    api.clear()
    api.fault("list_twins")
    with pytest.raises(ProviderError, match="not complete"):
        renter.prime.instances()
    api.clear()
    assert renter.end(renter.prime.instances()[0].id) == FREE


def test_a_row_that_flickers_is_no_death(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("flicker")
    api.fault("delete_lies", times=1)
    assert renter.end(number) <= Decimal("0.05")


def test_what_comes_back_after_its_end_is_ended_again(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("reappear_after_s", seconds=10)
    assert renter.end(number) == Decimal("0.10")  # seen in the second round, ended in the third


def test_a_teams_pod_that_no_list_shows_is_shown_by_id_and_ended(
    api: Cloud, renter: Renter
) -> None:
    renter.prime = adapter(api, renter.clock, team_id=TEAM_ID)
    assert renter.prime.account().endswith(f"/{TEAM_ID}")
    number = renter.rent()
    api.fault("team_pods_hidden")
    assert renter.labels() == []
    assert renter.row(number).id == number
    assert renter.end(number) == FREE


def test_a_404_of_a_living_pod_is_no_death(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("pod_404", times=5)
    assert renter.prime.instance(number) is None
    assert renter.labels() == [LABEL]
    assert renter.end(number) == FREE


def test_nulls_and_fractions_blind_nobody(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("fractional_numbers")
    api.fault("null_fields", fields="priceHr,createdAt,gpuName,gpuCount,socket,name")
    [row] = renter.prime.instances()
    assert (row.id, row.usd_per_hour, row.created_at, row.gpu) == (number, None, None, None)
    api.clear()
    api.fault("null_fields", fields="id")
    with pytest.raises(ProviderError):
        renter.prime.instances()
    api.clear()
    assert renter.end(number) == FREE


@pytest.mark.parametrize(
    ("shape", "user", "port"),
    [
        ("list", "root", 22),
        ("nodes", "root", 22),
        ("null", "root", 22),  # from the address and the port map
        ("no_port", "root", 22),
        ("with_ssh", "root", 22),
        ("list_null", None, None),
        ("placeholder", None, None),
    ],
)
def test_every_shape_of_a_connection(
    api: Cloud, renter: Renter, shape: str, user: str | None, port: int | None
) -> None:
    number = renter.rent()
    api.fault("ssh_shape", shape=shape)
    if user is None:
        with pytest.raises(ProviderError, match="does not tell yet"):
            renter.prime.login(number)
    else:
        login = renter.prime.login(number)
        assert (login.user, login.addresses) == (user, (("192.0.2.1", port),))
        assert (login.name, login.root) == (f"prime-{number}", "/root")
    assert renter.end(number) == FREE


# The life of a pod.


def test_a_pod_is_starting_until_its_image_is_installed(api: Cloud, renter: Renter) -> None:
    api.fault("boot_s", seconds=900)
    number = renter.create()
    assert renter.row(number).state is InstanceState.STARTING
    assert renter.costs(899) == round(USD * 599 / 3600, 2)
    api.advance(1)
    assert renter.row(number).state is InstanceState.STARTING, "ACTIVE, but installing"
    renter.wait(1)
    assert renter.row(number).state is InstanceState.RUNNING
    assert renter.end(number) == FREE


def test_a_pod_that_stays_pending_bills(api: Cloud, renter: Renter) -> None:
    api.fault("stuck", status="PENDING")
    number = renter.rent()
    assert renter.row(number).state is InstanceState.STARTING
    assert renter.row(number).usd_per_hour == USD
    assert renter.end(number) == FREE


def test_pods_that_will_never_run_are_told_at_once(api: Cloud, renter: Renter) -> None:
    api.fault("start_fails")
    broken = renter.rent()
    api.clear()
    api.fault("installation_error")
    spoilt = renter.rent(renter.order(label="gpurun-b"))
    rows = [renter.row(number) for number in (broken, spoilt)]
    assert {(row.state, row.usd_per_hour) for row in rows} == {(InstanceState.STOPPED, USD)}
    assert renter.end(spoilt) == round(USD * 20 / 3600, 2), "the other one bills meanwhile"
    assert renter.end(broken) == FREE


def test_another_gpu_than_was_ordered_is_in_the_answer(api: Cloud, renter: Renter) -> None:
    order = renter.order()
    api.fault("wrong_gpu", gpu="A100_40GB", where="row")
    with pytest.raises(CreateFailedButMade, match="GPU is A100_40GB, not H100_80GB") as made:
        renter.prime.create(order)
    assert renter.end(made.value.instance_id) == FREE


def test_a_pod_that_nobody_can_reach_is_ended_all_the_same(
    api: Cloud, renter: Renter, boxes: StubBoxes
) -> None:
    api.fault("ssh_refused")
    api.fault("box_cut_off")
    number = renter.rent()
    assert renter.row(number).state is InstanceState.RUNNING
    assert renter.end(number) == FREE
    assert boxes.made[0].done[-1] == "destroy"


def test_restarts_end_no_bill_and_stop_no_end(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("container_restart")
    api.fault("host_reboot")
    assert renter.row(number).usd_per_hour == USD
    assert renter.costs(3600) == USD
    assert renter.end(number) == FREE


def test_a_price_above_the_offer_is_refused_on_its_answer(api: Cloud, renter: Renter) -> None:
    order = renter.order()
    api.fault("price_up", factor=1.25)
    with pytest.raises(CreateFailedButMade, match=r"it costs \$10.95/h") as made:
        renter.prime.create(order)
    assert renter.end(made.value.instance_id) == FREE


def test_a_spot_pod_that_was_outbid_bills_until_it_is_ended(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("outbid")
    row = renter.row(number)
    assert (row.state, row.usd_per_hour) == (InstanceState.STOPPED, USD)
    api.fault("resume_after_s", seconds=60)
    assert renter.costs(60) == round(USD / 60, 2)
    assert renter.row(number).state is not InstanceState.STOPPED
    assert renter.end(number) == FREE


def test_words_that_nobody_knows_are_unknown_and_bill(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("status_word", word="HIBERNATED")
    row = renter.row(number)
    assert (row.state, row.usd_per_hour) == (InstanceState.UNKNOWN, USD)
    assert renter.end(number) == FREE


def test_a_pod_with_another_name_is_ended_by_its_id(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("relabel")
    assert renter.labels() == ["renamed"]
    assert renter.end(number) == FREE


def test_a_pod_ended_in_the_console_is_gone(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("console_destroy")
    assert renter.prime.instance(number) is None
    assert renter.end(number) == FREE


def test_two_pods_of_one_name_are_two_rows(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("twin_label", seconds_before=600)
    rows = renter.prime.instances()
    assert [row.label for row in rows] == [LABEL, LABEL]
    renter.prime.destroy(number)
    renter.wait(1)
    assert number not in renter.alive()
    assert len(renter.prime.instances()) == 1, "the other is somebody else's"


# The end.


def test_a_delete_that_does_nothing_is_asked_again(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("delete_lies", times=2)
    assert renter.end(number) == Decimal("0.10")


def test_a_404_to_a_delete_counts_when_nothing_shows_the_pod(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("delete_404", times=1)
    assert renter.end(number) == FREE


def test_a_404_to_a_delete_of_what_is_listed_is_no_end(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("server_error", endpoint="destroy", status=404, body="json")
    with pytest.raises(ProviderError, match="shows it all the same"):
        renter.prime.destroy(number)
    assert renter.alive() == {number}


def test_deleting_for_an_hour_is_still_billing(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("deleting_s", seconds=3600)
    renter.prime.destroy(number)
    assert renter.row(number).state is InstanceState.ENDING
    assert renter.row(number).usd_per_hour == USD
    assert renter.end(number) == USD


def test_a_terminated_pod_that_lingers_is_gone(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("terminated_listed_s", seconds=600)
    assert renter.end(number, within_s=120) == FREE


def test_the_tail_after_a_delete_is_less_than_what_is_reserved(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    api.fault("tail_s", seconds=318)
    renter.end(number)
    renter.wait(3600)
    reserved = USD * int(renter.prime.traits.tail_s) / 3600
    assert renter.prime.billed_usd(number) <= reserved + CENT


def test_the_bill_comes_from_the_history_when_it_is_there(api: Cloud, renter: Renter) -> None:
    number = renter.rent()
    renter.wait(3600)
    api.fault("history_lag_s", seconds=150)
    renter.end(number)
    assert renter.prime.billed_usd(number) is None
    renter.wait(150)
    billed = renter.prime.billed_usd(number)
    assert billed is not None
    assert round(billed, 6) == round(api.meter().billed_usd, 6)


def test_an_id_given_to_another_pod_is_another_row(
    api: Cloud, renter: Renter, prime: Prime
) -> None:
    number = renter.rent()
    renter.end(number)
    api.fault("id_reuse", label="theirs")
    assert renter.row(number).label == "theirs"
    assert renter.labels() == ["theirs"]
