"""What each fault of Vast comes to, in dollars of its meter: at the adapter, and in the proof.

Those of purchases, lists, DELETE and the scheduler are beside what they concern; the last test
here compares all of them with the knobs of the emulator.
"""

import re
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from gpurun import proof, web
from gpurun.errors import CreateUnclear, NoCapacity, ProviderError, ProviderUnreachable
from gpurun.model import InstanceState, Need
from gpurun.proof import Evidence, Verdict
from provisioners.vast import Vast
from provisioners.vast.limits import ENDPOINTS
from tests.clouds.serve import Cloud
from tests.clouds.stub import StubBoxes
from tests.contract import LABEL
from tests.fakecloud import FakeClock
from tests.provisioners.vast.conftest import START, adapter
from tests.provisioners.vast.test_vast import H100X4, RATE, order

HOUR_S = 3600


@pytest.fixture
def box(market: Cloud, vast: Vast) -> str:
    """Running, at $7.561667 an hour."""
    made = vast.create(order(vast)).instance_id
    market.advance(1)
    return made


def cost(market: Cloud, seconds: float) -> Decimal:
    before = market.meter().billed_usd
    market.advance(seconds)
    return round(market.meter().billed_usd - before, 2)


def end(market: Cloud, vast: Vast, box: str, account: str = "") -> Verdict:
    """DELETE, then two lists 20 s apart and a lookup: what they prove."""
    evidence = Evidence(account or vast.account(), LABEL, box, seen=True)
    at_s = 0.0
    try:
        vast.destroy(box)
        evidence = evidence.acknowledged(at_s)
    except ProviderError:
        pass
    for at_s in (1.0, 22.0):
        market.advance(21)
        try:
            asked = vast.account()
            evidence = evidence.plus(proof.listing(asked, at_s, vast.instances()))
            found = vast.instance(box) is not None
            evidence = evidence.plus(proof.Lookup(asked, at_s, found))
        except ProviderError:
            continue
    return proof.of_death(evidence, vast.traits.proof_gap_s)


# The end, and lies about it.


def test_what_is_destroyed_is_proven_gone_at_0_dollars_more(
    market: Cloud, vast: Vast, box: str
) -> None:
    assert end(market, vast, box).gone
    assert cost(market, 9 * HOUR_S) == 0


@pytest.mark.parametrize(
    ("fault", "values"),
    [
        ("delete_lies", {}),
        ("auth_404", {"endpoint": "destroy"}),
        ("server_error", {"endpoint": "destroy"}),
        ("rate_limited", {"endpoint": "destroy"}),
        ("list_page_fails", {"page": 1}),
        ("total_wrong", {"by": 1}),
    ],
)
def test_no_false_death_and_the_next_try_ends_the_bill(
    market: Cloud, vast: Vast, box: str, fault: str, values: dict[str, object]
) -> None:
    market.fault(fault, **values)
    assert not end(market, vast, box).gone
    market.clear()
    assert end(market, vast, box).gone
    assert cost(market, HOUR_S) == 0


@pytest.mark.parametrize("fault", ["list_empty", "flicker"])
def test_a_list_without_it_is_no_death_while_the_row_is_there(
    market: Cloud, vast: Vast, box: str, fault: str
) -> None:
    market.fault(fault)
    market.fault("delete_lies")
    assert not end(market, vast, box).gone
    assert cost(market, HOUR_S) == Decimal("7.56")


def test_the_key_of_another_account_proves_nothing(market: Cloud, vast: Vast, box: str) -> None:
    """DELETE is answered `no_such_instance`, lists are empty, the row is null: all of it a lie."""
    mine = vast.account()
    market.fault("key_of_other_account")
    assert not end(market, vast, box, account=mine).gone
    assert cost(market, HOUR_S) == Decimal("7.56")


def test_what_reappears_is_listed_with_its_label_and_ended_again(
    market: Cloud, vast: Vast, box: str
) -> None:
    market.fault("reappear_after_s", seconds=600)
    assert end(market, vast, box).gone, "nothing tells yet"
    market.advance(600)
    assert [(row.id, row.label) for row in vast.instances()] == [(box, LABEL)]
    assert end(market, vast, box).gone
    assert cost(market, HOUR_S) == 0


def test_the_tail_is_within_what_is_reserved_for_it(market: Cloud, vast: Vast, box: str) -> None:
    market.fault("tail_s", seconds=318)
    vast.destroy(box)
    assert cost(market, HOUR_S) == Decimal("0.67")
    assert vast.traits.tail_s >= 318


def test_an_id_that_is_given_again_bears_another_label(market: Cloud, vast: Vast, box: str) -> None:
    market.fault("id_reuse", label="somebody-elses")
    vast.destroy(box)
    row = vast.instance(box)
    assert row is not None
    assert (row.label, row.state) == ("somebody-elses", InstanceState.RUNNING)


def test_a_box_destroyed_in_the_console_is_gone_by_the_row(
    market: Cloud, vast: Vast, box: str
) -> None:
    market.fault("console_destroy")
    assert vast.instance(box) is None
    vast.destroy(box)
    assert cost(market, HOUR_S) == 0


def test_what_a_box_has_moved_is_told_in_dollars(market: Cloud, vast: Vast, box: str) -> None:
    row = vast.instance(box)
    assert row is not None
    assert row.traffic_usd == 0
    market.fault("traffic", up_gb=2, down_gb=30)
    later = adapter(market, FakeClock(START + timedelta(hours=1)))
    [row] = later.instances()
    assert row.traffic_usd == 2 * Decimal("0.0026") + 30 * Decimal("0.0013")


def test_more_than_a_line_can_carry_is_not_believed(market: Cloud, vast: Vast, box: str) -> None:
    market.fault("traffic", up_gb=2, down_gb=30_000)
    for minutes, told in ((1, None), (60 * 24, Decimal("39.0052"))):
        later = adapter(market, FakeClock(START + timedelta(minutes=minutes)))
        assert later.instances()[0].traffic_usd == told


# Purchases.


def test_a_box_that_is_listed_late_is_found_by_its_label(market: Cloud, vast: Vast) -> None:
    market.fault("list_lag_s", seconds=119)
    market.fault("answer_lost")
    with pytest.raises(CreateUnclear):
        vast.create(order(vast))
    assert vast.instances() == []
    market.advance(vast.traits.settle_window_s)
    (row,) = vast.instances()
    assert row.label == LABEL
    assert end(market, vast, row.id).gone
    assert market.meter().billed_usd < Decimal("0.35")


def test_an_older_twin_is_told_by_when_it_was_made(market: Cloud, vast: Vast, box: str) -> None:
    market.fault("twin_label", seconds_before=3600)
    rows = sorted(vast.instances(), key=lambda row: row.created_at or START)
    assert [row.label for row in rows] == [LABEL, LABEL]
    assert rows[1].id == box
    assert rows[0].created_at == (rows[1].created_at or START) - timedelta(seconds=3600 - 1)


def test_a_relabelled_box_is_found_by_its_id(market: Cloud, vast: Vast, box: str) -> None:
    market.fault("relabel", label="renamed")
    assert [row.label for row in vast.instances()] == ["renamed"]
    assert end(market, vast, box).gone


def test_offers_that_went_up_are_refused_above_the_price_allowed(market: Cloud, vast: Vast) -> None:
    wanted = order(vast)
    market.fault("offers_up", factor=1.5)
    (dearer, *_) = vast.offers(H100X4)
    assert dearer.usd_per_hour == Decimal("11.321667")
    with pytest.raises(NoCapacity, match=r"more than the \$10/h allowed"):
        vast.create(replace(wanted, offer=dearer))
    assert market.meter().alive == 0


def test_a_bid_below_the_floor_makes_nothing(market: Cloud, vast: Vast) -> None:
    """Without `cancel_unavail` it would park a box that bills $0.06/h for its disk."""
    wanted = order(vast, replace(H100X4, spot=True))
    market.fault("offers_up", factor=2)
    with pytest.raises(NoCapacity, match="is gone"):
        vast.create(wanted)
    assert market.meter().alive == 0
    assert cost(market, HOUR_S) == 0


def test_a_price_that_went_up_is_seen_in_the_row(market: Cloud, vast: Vast, box: str) -> None:
    market.fault("price_up", factor=1.5)
    row = vast.instance(box)
    assert row is not None
    assert row.usd_per_hour == Decimal("11.321667")
    assert cost(market, HOUR_S) == Decimal("11.32")


def test_a_disk_that_alone_gets_dearer_is_seen_in_the_row(
    market: Cloud, vast: Vast, box: str
) -> None:
    """By which the keeper shortens a run, as by any price that rises."""
    market.fault("disk_price_up", factor=49)
    row = vast.instance(box)
    assert row is not None
    assert row.usd_per_hour == Decimal("9.561667")  # $7.52, and 49 times $0.041667
    assert cost(market, HOUR_S) == Decimal("9.56")


def test_searches_that_vary_lose_offers_not_truth(market: Cloud, vast: Vast) -> None:
    every = {offer.id for offer in vast.offers(H100X4)}
    market.fault("search_varies")
    halves = [{offer.id for offer in vast.offers(H100X4)} for _ in range(2)]
    assert halves[0] | halves[1] == every


def test_a_quota_that_is_used_up_is_said_and_not_waited_for(market: Cloud) -> None:
    market.fault("search_quota")
    clock = FakeClock(START)
    http = web.client("vast", market.url, market.api_key, ENDPOINTS, clock)
    with pytest.raises(ProviderUnreachable, match="Daily search quota exceeded"):
        Vast(http, clock).offers(H100X4)
    assert clock.slept_s == []


# Boxes.


@pytest.mark.parametrize(("status", "spent"), [("null", "0.04"), ("loading", "0.04")])
def test_a_box_that_never_starts_bills_its_disk_and_is_starting(
    market: Cloud, vast: Vast, status: str, spent: str
) -> None:
    market.fault("stuck", status=status)
    made = vast.create(order(vast)).instance_id
    assert cost(market, HOUR_S) == Decimal(spent)
    row = vast.instance(made)
    assert row is not None
    assert row.state is InstanceState.STARTING
    assert row.usd_per_hour == RATE, "shown at what it will cost once it runs"


def test_a_slow_start_is_starting_and_has_no_address(market: Cloud, vast: Vast) -> None:
    market.fault("boot_s", seconds=600)
    made = vast.create(order(vast)).instance_id
    market.advance(599)
    with pytest.raises(ProviderError, match="does not say yet"):
        vast.login(made)
    market.advance(2)
    assert vast.login(made).addresses


def test_other_gpus_than_were_bought_are_in_the_row(market: Cloud, vast: Vast) -> None:
    market.fault("wrong_gpu", where="row", gpu="RTX 4090", count=2)
    made = vast.create(order(vast)).instance_id
    row = vast.instance(made)
    assert row is not None
    assert (row.gpu, row.gpu_count) == ("RTX 4090", 2)


def test_a_direct_port_that_is_closed_leaves_the_proxy(
    market: Cloud, boxes: StubBoxes, vast: Vast
) -> None:
    market.fault("ssh_refused", path="direct")
    made = vast.create(order(vast)).instance_id
    market.advance(1)
    assert vast.login(made).addresses == ((boxes.made[0].host, 9), ("127.0.0.1", 40022))


def test_a_login_is_told_not_to_run_tmux(market: Cloud, boxes: StubBoxes, vast: Vast) -> None:
    market.fault("auto_tmux")
    vast.create(order(vast))
    market.advance(1)
    assert boxes.made[0].spec.auto_tmux
    assert "touch ~/.no_auto_tmux" in boxes.made[0].starts[0].script


@pytest.mark.parametrize("fault", ["recycle", "host_reboot", "container_restart"])
def test_every_start_of_the_container_runs_what_arms_the_fuse(
    market: Cloud, boxes: StubBoxes, vast: Vast, fault: str
) -> None:
    vast.create(replace(order(vast), fuse_script="echo fuse"))
    market.advance(1)
    market.fault(fault)
    market.advance(1)
    starts = [start for each in boxes.made for start in each.starts]
    assert len(starts) == 2
    assert all("fuse.sh arm 1" in start.script for start in starts)
    assert all("GPURUN_FUSE_00" in start.environment for start in starts)


def test_an_outbid_box_is_stopped_and_may_resume_and_bill(
    market: Cloud, vast: Vast, box: str
) -> None:
    market.fault("outbid")
    market.fault("resume_after_s", seconds=6 * HOUR_S)
    row = vast.instance(box)
    assert row is not None
    assert row.state is InstanceState.STOPPED
    assert cost(market, HOUR_S) == Decimal("0.06")
    assert end(market, vast, box).gone
    assert cost(market, 9 * HOUR_S) == 0


def test_nothing_here_starts_a_box_so_no_start_is_ever_queued(
    market: Cloud, vast: Vast, box: str
) -> None:
    market.fault("start_queued", starts_after_s=60)
    market.fault("outbid")
    vast.instances()
    vast.destroy(box)
    assert cost(market, HOUR_S) == 0
    routes = [entry["api_route"] for entry in market.world.account.audit]
    assert [route.split()[0] for route in routes] == ["PUT", "DELETE"]
    assert "/asks/" in routes[0]


def test_without_credit_a_box_is_stopped_and_still_costs_its_disk(
    market: Cloud, vast: Vast, box: str
) -> None:
    market.fault("credit_zero")
    row = vast.instance(box)
    assert row is not None
    assert (row.state, row.usd_per_hour) == (InstanceState.STOPPED, Decimal("0.055556"))
    assert vast.credit_usd() == 0


def test_a_card_that_tops_up_is_remarked(market: Cloud, vast: Vast) -> None:
    assert not any("card" in remark.says for remark in vast.remarks())
    market.fault("autobilling", below_usd=10)
    assert any("tops it up below $10" in remark.says for remark in vast.remarks())


def test_what_was_charged_is_the_meter_to_the_cent_the_day_after(
    market: Cloud, vast: Vast, box: str
) -> None:
    market.fault("traffic", up_gb=2, down_gb=30)
    market.fault("tail_s", seconds=200)
    market.advance(1800)
    assert vast.billed_usd(box) is None
    vast.destroy(box)
    market.advance(24 * HOUR_S)
    later = adapter(market, FakeClock(START + timedelta(days=1)))
    billed = later.billed_usd(box)
    assert billed is not None
    assert round(billed, 2) == round(market.meter().billed_usd, 2) == Decimal("4.25")
    assert later.billed_usd("4711") is None


# The wire, with patience.


def patient(market: Cloud, clock: FakeClock) -> Vast:
    """Its clock moves the cloud's: a wait lets the cloud's own intervals pass."""
    http = web.client("vast", market.url, market.api_key, ENDPOINTS, clock)
    return Vast(http, clock)


class Both(FakeClock):
    def __init__(self, market: Cloud) -> None:
        super().__init__(START)
        self._market = market

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._market.advance(seconds)


def test_the_documented_intervals_are_kept(market: Cloud) -> None:
    """Without the spacing the second DELETE of a second is 429 and its box bills on."""
    clock = Both(market)
    vast = patient(market, clock)
    need = Need(None, 0, 10)
    offers = vast.offers(need)
    ids = [
        vast.create(replace(order(vast, need), offer=offer, label=f"{LABEL}{n}")).instance_id
        for n, offer in enumerate(offers[:3])
    ]
    market.fault("rate_limits")
    for each in ids:
        vast.destroy(each)
    assert market.meter().alive == 0
    for _ in range(3):
        assert vast.instances() == []


def test_a_busy_or_broken_api_is_asked_again_and_the_box_is_ended(market: Cloud) -> None:
    clock = Both(market)
    vast = patient(market, clock)
    box = vast.create(order(vast)).instance_id
    for fault, values in (
        ("server_error", {"endpoint": "destroy", "times": 2}),
        ("rate_limited", {"endpoint": "destroy", "times": 1, "retry_after_s": 5}),
    ):
        market.fault(fault, **values)
    vast.destroy(box)
    assert market.meter().alive == 0
    assert market.meter().billed_usd < Decimal("0.05")


def test_a_purchase_is_not_repeated_however_patient(market: Cloud) -> None:
    vast = patient(market, Both(market))
    wanted = order(vast)
    market.fault("server_error", endpoint="create", when="after", times=1)
    with pytest.raises(CreateUnclear):
        vast.create(wanted)
    assert len(market.meter().instances) == 1


@pytest.mark.parametrize("fault", ["slow", "down"])
def test_an_answer_that_does_not_come_has_an_end(market: Cloud, box: str, fault: str) -> None:
    clock = FakeClock(START)
    http = web.client("vast", market.url, market.api_key, (), clock, call_s=0.3)
    values = {"endpoint": "list", "seconds": 2} if fault == "slow" else {"how": "hang"}
    market.fault(fault, **values)
    with pytest.raises(ProviderUnreachable, match="no answer to the list"):
        Vast(http, clock).instances()
    market.clear()
    assert market.meter().alive == 1


@pytest.mark.parametrize(("fault", "moved_s"), [("date_skew_s", 3600.0), ("stale_date", 0.0)])
def test_the_clock_follows_vasts_date_but_not_a_cached_one(
    market: Cloud, fault: str, moved_s: float
) -> None:
    clock = Listener(START)
    market.fault(fault)
    for _ in range(3):
        adapter(market, clock).account()
    assert abs((clock.heard_s or 0.0) - moved_s) < 2


class Listener(FakeClock):
    """What was told to it last, against its own time."""

    heard_s: float | None = None

    def observe(self, provider_date: datetime, took_s: float = 0.0) -> None:
        self.heard_s = (provider_date - self.now()).total_seconds()


def test_every_knob_of_vast_is_turned_in_this_folder(market: Cloud) -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    words = set(re.findall(r'"(\w+)"', text))
    assert set(market.world.knobs.faults) - words == set()
