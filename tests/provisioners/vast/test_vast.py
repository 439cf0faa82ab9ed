"""Vast as a provider: the contract, what is bought, and how its rows are read."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import httpx
import pytest

from gpurun.errors import (
    AccountRefused,
    CreateFailedButMade,
    CreateUnclear,
    NoCapacity,
    NoOffer,
    ProviderError,
    ProviderUnreachable,
)
from gpurun.model import InstanceState, Need, Order
from gpurun.provider import (
    Examined,
    FuseFromStart,
    KeepsSshKeys,
    KeepsTimers,
    OverSsh,
    Prepaid,
    Provisioner,
    Rehearsal,
    ReportsCost,
)
from provisioners.vast import Vast
from tests.clouds.serve import Cloud
from tests.clouds.stub import StubBoxes
from tests.contract import LABEL, ProvisionerContract
from tests.fakecloud import FakeClock
from tests.provisioners.vast.conftest import START, adapter

H100X4 = Need("H100", 4, 200, rent_s=3600)
RATE = Decimal("7.561667")  # the cheapest good machine: $7.52 and 200 GB at $0.15 a month


def order(vast: Vast, need: Need = H100X4, label: str = LABEL) -> Order:
    offer = next(iter(vast.offers(need)))
    ends_at = START + timedelta(minutes=41)
    return Order(offer, need, label, ends_at - timedelta(minutes=1), ends_at, Decimal(10))


class TestContract(ProvisionerContract):
    @pytest.fixture
    def cloud(self, vast: Vast) -> Provisioner:
        return vast

    def impossible_offers(self, cloud: Provisioner) -> Iterable[object]:
        with pytest.raises(NoOffer, match="no GPU called"):
            super().impossible_offers(cloud)
        return []


def test_it_can_do_what_the_engine_asks_of_such_a_provider(vast: Vast) -> None:
    for port in (
        OverSsh,
        FuseFromStart,
        Rehearsal,
        KeepsTimers,
        Prepaid,
        Examined,
        KeepsSshKeys,
        ReportsCost,
    ):
        assert isinstance(vast, port), port


# What is offered.


def test_the_cheapest_offers_are_refused_for_their_flaws(vast: Vast) -> None:
    """They cost $1.50/h less; the market of the emulator says what is wrong with each."""
    offers = vast.offers(H100X4)
    assert [offer.usd_per_hour for offer in offers] == [
        RATE,
        Decimal("8.001667"),
        Decimal("8.441667"),
    ]
    best = offers[0]
    assert (best.gpu, best.gpu_count, best.machine, best.nvlink) == ("H100 SXM", 4, "21004", True)
    assert (best.vram_gb, best.cuda, best.driver) == (80, "12.8", "570.124.06")
    assert (best.usd_per_gb_down, best.place) == (Decimal("0.0013"), "Iceland, IS")


def test_flaws_are_seen_here_too_when_vast_applies_no_filter(market: Cloud, vast: Vast) -> None:
    market.fault("filters_ignored")
    assert {offer.machine for offer in vast.offers(H100X4)} == {"21004", "21007", "21010"}


@pytest.mark.parametrize(
    ("wish", "count", "names"),
    [
        ("H100", 1, {"H100 SXM", "H100 PCIE"}),
        ("H100 PCIe", 4, {"H100 PCIE"}),
        ("h100_nvl", 4, {"H100 NVL"}),
        ("H200", 1, {"H200"}),
        ("A100", 4, {"A100 SXM4 80GB", "A100 SXM4 40GB"}),
        ("A100 80GB", 4, {"A100 SXM4 80GB"}),
        ("A100_40GB", 4, {"A100 SXM4 40GB"}),
        ("NVIDIA L40S", 1, {"L40S"}),
    ],
)
def test_users_words_find_vasts_names(vast: Vast, wish: str, count: int, names: set[str]) -> None:
    assert {offer.gpu for offer in vast.offers(Need(wish, count, 20))} == names


def test_a_gpu_that_does_not_exist_names_the_nearest(vast: Vast) -> None:
    with pytest.raises(NoOffer, match=r"no GPU called 'H1000': did you mean .*H100"):
        vast.offers(Need("H1000", 1, 20))


def test_an_old_driver_is_refused_only_by_an_image_that_needs_a_newer_one(vast: Vast) -> None:
    new, old = (
        vast.offers(replace(H100X4, image=f"pytorch/pytorch:2.5.1-cuda{v}-cudnn9-devel"))
        for v in ("12.4", "11.8")
    )
    assert "21118" not in {offer.machine for offer in new}
    assert "21118" in {offer.machine for offer in old}


def test_a_host_must_outlast_the_run(vast: Vast) -> None:
    assert vast.offers(replace(H100X4, rent_s=59 * 86400))
    assert vast.offers(replace(H100X4, rent_s=60 * 86400)) == []


def test_the_disk_that_was_asked_is_in_the_price_even_if_vast_leaves_it_out(
    market: Cloud, vast: Vast
) -> None:
    market.fault("offer_excludes_storage")
    assert vast.offers(H100X4)[0].usd_per_hour == RATE


def test_an_empty_search_offers_nothing(market: Cloud, vast: Vast) -> None:
    market.fault("search_empty")
    assert vast.offers(H100X4) == []


def test_a_bad_machine_is_not_offered_until_its_time_is_over(market: Cloud) -> None:
    bad = {"21004"}
    vast = adapter(market, avoided=lambda: bad)
    assert [offer.machine for offer in vast.offers(H100X4)] == ["21007", "21010"]
    market.fault("filters_ignored")
    assert "21004" not in {offer.machine for offer in vast.offers(H100X4)}
    bad.clear()
    assert vast.offers(H100X4)[0].machine == "21004"


# What is bought.


def test_what_is_sent_to_rent(market: Cloud, vast: Vast) -> None:
    vast.create(order(vast))
    sent = market.world.account.audit[-1]["args"]
    assert sent["cancel_unavail"] is True
    assert sent["runtype"] == "ssh_direc ssh_proxy"
    assert (sent["disk"], sent["label"], sent["env"]) == (200, LABEL, {})
    assert "price" not in sent
    assert "no_auto_tmux" in sent["onstart"]


def test_a_bid_is_sent_as_one(market: Cloud, vast: Vast) -> None:
    """Without `price` it would be a purchase at $7.52/h."""
    spot = replace(H100X4, spot=True)
    made = vast.create(order(vast, spot))
    row = vast.instance(made.instance_id)
    assert row is not None
    assert row.usd_per_hour == Decimal("4.551667")  # $4.51, and the disk
    assert market.world.account.audit[-1]["args"]["price"] == Decimal("4.51")
    market.advance(3600)
    assert round(market.meter().billed_usd, 2) == Decimal("4.55")


def test_the_price_of_an_offer_is_the_price_of_its_row_and_not_below_the_meter(
    market: Cloud, vast: Vast
) -> None:
    vast.create(order(vast))
    market.advance(3601)
    (row,) = vast.instances()
    assert row.usd_per_hour == RATE
    assert market.meter().billed_usd <= RATE * 3601 / 3600


def test_a_stopped_box_is_shown_at_what_its_disk_costs(market: Cloud, vast: Vast) -> None:
    vast.create(order(vast))
    market.fault("outbid", after_s=60)
    market.advance(120)
    (row,) = vast.instances()
    assert (row.state, row.usd_per_hour) == (InstanceState.STOPPED, Decimal("0.055556"))


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("running", InstanceState.RUNNING),
        ("loading", InstanceState.STARTING),
        ("exited", InstanceState.UNKNOWN),
        ("frozen", InstanceState.UNKNOWN),
        ("offline", InstanceState.UNKNOWN),
        ("unknown", InstanceState.UNKNOWN),
        ("quantum", InstanceState.UNKNOWN),
    ],
)
def test_a_word_that_is_not_plainly_good_is_unknown_and_bills(
    market: Cloud, vast: Vast, word: str, state: InstanceState
) -> None:
    vast.create(order(vast))
    market.advance(1)
    market.fault("status_word", word=word)
    (row,) = vast.instances()
    assert row.state is state
    assert row.usd_per_hour == RATE


def test_a_container_that_cannot_start_is_stopped_and_says_why(market: Cloud, vast: Vast) -> None:
    market.fault("start_fails")
    made = vast.create(order(vast))
    market.advance(1)
    row = vast.instance(made.instance_id)
    assert row is not None
    assert row.state is InstanceState.STOPPED
    assert "OCI runtime create failed" in row.message
    assert row.machine == "21004"


# Reaching it.


def test_a_box_is_reached_directly_then_by_the_proxy(
    market: Cloud, boxes: StubBoxes, vast: Vast
) -> None:
    made = vast.create(order(vast))
    with pytest.raises(ProviderError, match="does not say yet where"):
        vast.login(made.instance_id)
    market.fault("ip_with_spaces")
    market.advance(1)
    login = vast.login(made.instance_id)
    assert login.addresses == ((boxes.made[0].host, 22), ("127.0.0.1", 40022))
    assert login.name == f"vast-{made.instance_id}"
    assert (login.user, login.root) == ("root", vast.root)


# Refusals.


def test_what_each_refusal_of_a_purchase_means_in_dollars(market: Cloud, vast: Vast) -> None:
    wanted = order(vast)
    for status in (400, 404, 410):
        market.fault("offer_gone", status=status)
        with pytest.raises(NoCapacity, match="is gone; nothing was made"):
            vast.create(wanted)
    market.clear()
    market.fault("rate_limited", endpoint="create", shape="threshold")
    with pytest.raises(NoCapacity, match="asked too often"):
        vast.create(wanted)
    market.clear()
    market.fault("key_scopes", scopes="misc")
    with pytest.raises(AccountRefused, match="lacks the scope instance_write"):
        vast.create(wanted)
    market.clear()
    market.fault("credit_zero")
    with pytest.raises(AccountRefused, match="insufficient_credit"):
        vast.create(wanted)
    market.advance(3600)
    assert market.meter().billed_usd == 0


def test_a_refusal_that_made_a_box_tells_its_id(market: Cloud, vast: Vast) -> None:
    market.fault("create_refused_made")
    with pytest.raises(CreateFailedButMade) as refusal:
        vast.create(order(vast))
    vast.destroy(refusal.value.instance_id)
    market.advance(3600)
    assert market.meter().billed_usd == 0


def test_a_replayed_purchase_is_adopted_and_not_bought_again(market: Cloud, vast: Vast) -> None:
    market.fault("create_replayed")
    made = vast.create(order(vast))
    assert [row.id for row in vast.instances()] == [made.instance_id]


def test_no_such_ask_without_a_list_is_no_refusal(market: Cloud, vast: Vast) -> None:
    market.fault("create_replayed")
    market.fault("server_error", endpoint="list")
    with pytest.raises(CreateUnclear, match="no list either"):
        vast.create(order(vast))


@pytest.mark.parametrize(
    ("fault", "values"),
    [
        ("answer_lost", {"when": "before"}),
        ("answer_lost", {"when": "after"}),
        ("server_error", {"endpoint": "create", "when": "after", "body": "json"}),
        ("server_error", {"endpoint": "create", "when": "after", "body": "html"}),
        ("html", {"endpoint": "create", "when": "after"}),
        ("down", {"how": "drop"}),
        ("down", {"how": "503"}),
    ],
)
def test_an_answer_that_proves_nothing_is_unclear_and_sent_once(
    market: Cloud, vast: Vast, fault: str, values: dict[str, object]
) -> None:
    wanted = order(vast)
    market.fault(fault, **values)
    with pytest.raises(CreateUnclear):
        vast.create(wanted)
    assert len(market.meter().instances) <= 1


def test_a_cloud_that_cannot_be_connected_to_was_sent_nothing(market: Cloud, vast: Vast) -> None:
    wanted = order(vast)
    market.url = "http://127.0.0.1:9"
    with pytest.raises(NoCapacity, match="cannot be reached"):
        adapter(market).create(wanted)


# Lists and ends.


def test_a_list_has_every_page(market: Cloud, vast: Vast) -> None:
    need = Need(None, 0, 10)
    made = {
        vast.create(replace(order(vast, need), label=f"{LABEL}{n}")).instance_id for n in range(5)
    }
    # The market has not 26 machines: twins make the second page.
    for number in range(25):
        market.fault("twin_label", instance=min(made), seconds_before=number)
    rows = vast.instances()
    assert len(rows) == 30
    assert made <= {row.id for row in rows}
    market.fault("list_page_fails", page=2)
    with pytest.raises(ProviderUnreachable):
        vast.instances()


@pytest.mark.parametrize(
    ("fault", "values"),
    [
        ("total_wrong", {"by": 1}),
        ("list_twins", {}),
        ("null_fields", {"fields": "id"}),
        ("html", {"endpoint": "list"}),
        ("auth_404", {"endpoint": "list"}),
        ("key_revoked", {}),
        ("rate_limited", {"endpoint": "list"}),
    ],
)
def test_a_list_that_does_not_add_up_is_an_error(
    market: Cloud, vast: Vast, fault: str, values: dict[str, object]
) -> None:
    vast.create(order(vast))
    market.fault(fault, **values)
    with pytest.raises(ProviderError):
        vast.instances()


def test_null_fields_lose_neither_the_row_nor_the_money(market: Cloud, vast: Vast) -> None:
    vast.create(order(vast))
    fields = "start_date,dph_total,gpu_name,num_gpus,machine_id,label,geolocation,status_msg,ports"
    market.fault("null_fields", fields=fields)
    (row,) = vast.instances()
    assert (row.usd_per_hour, row.created_at, row.gpu) == (None, None, None)


@pytest.mark.parametrize(
    ("fault", "values"),
    [
        ("auth_404", {"endpoint": "destroy"}),
        ("key_revoked", {}),
        ("key_scopes", {"scopes": "instance_read"}),
        ("server_error", {"endpoint": "destroy"}),
        ("server_error", {"endpoint": "destroy", "status": 404, "body": "json"}),
        ("html", {"endpoint": "destroy"}),
        ("rate_limited", {"endpoint": "destroy"}),
        ("answer_lost", {"endpoint": "destroy", "when": "before"}),
    ],
)
def test_a_delete_that_was_not_acknowledged_is_an_error_and_the_box_bills(
    market: Cloud, vast: Vast, fault: str, values: dict[str, object]
) -> None:
    made = vast.create(order(vast))
    market.advance(1)
    market.fault(fault, **values)
    with pytest.raises(ProviderError):
        vast.destroy(made.instance_id)
    assert market.meter().alive == 1


@pytest.mark.parametrize("fault", ["auth_404", "html", "key_revoked", "server_error"])
def test_one_row_is_gone_only_by_vasts_word_for_it(market: Cloud, vast: Vast, fault: str) -> None:
    made = vast.create(order(vast))
    market.fault(fault, **({} if fault == "key_revoked" else {"endpoint": "show"}))
    with pytest.raises(ProviderError):
        vast.instance(made.instance_id)


@pytest.mark.parametrize(
    "body", ['{"instances": []}', '{"instances": {"id": 8}}', "{}", "null", "7"]
)
def test_an_answer_that_is_neither_the_row_nor_null_says_nothing(body: str) -> None:
    server = httpx.MockTransport(lambda request: httpx.Response(200, text=body))
    http = httpx.Client(base_url="https://vast.test", transport=server)
    with http, pytest.raises(ProviderError):
        Vast(http, FakeClock(START)).instance("7")


def test_another_accounts_key_is_told_by_the_account(market: Cloud, vast: Vast) -> None:
    """It sees nothing and is told `no_such_instance`: only the account id gives it away."""
    vast.create(order(vast))
    mine = vast.account()
    market.fault("key_of_other_account")
    assert vast.account() != mine
    assert vast.instances() == []


def test_no_message_holds_the_key(market: Cloud) -> None:
    key = "f00d" * 16
    vast = adapter(market, key=key)
    with pytest.raises(ProviderError) as refusal:
        vast.instances()
    assert key not in str(refusal.value)
    assert "gpurun auth vast" in str(refusal.value)
    assert key not in repr(vast)


def test_without_an_ssh_key_here_nothing_is_bought(market: Cloud) -> None:
    """A box that nobody can enter would bill until half of its setup is over, and five of them."""
    vast = adapter(market, public_keys=None)
    with pytest.raises(AccountRefused, match="ssh-keygen"):
        vast.create(order(vast))
    assert market.meter().instances == ()
