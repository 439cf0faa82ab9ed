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
from provisioners.prime import Prime
from provisioners.prime.access import Access
from provisioners.prime.api import ENDPOINTS
from tests.clouds.serve import Cloud
from tests.fakecloud import FakeClock
from tests.provisioners.prime.renter import LABEL, USD, Renter, adapter

FREE = Decimal("0.00")


def test_every_knob_is_met_here(api: Cloud) -> None:
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_faults*.py")]
    met = set(re.findall(r'fault\(\s*"(\w+)"', "\n".join(texts)))
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

    class Watching(FakeClock):
        def observe(self, date: object, took_s: float = 0.0) -> None:
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
