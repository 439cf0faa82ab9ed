"""The plan of a purchase at two metered clouds: where, for how much, and what ends it."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpurun import show
from gpurun.budget import Deadlines, setup_timer
from gpurun.clock import SystemClock
from gpurun.engine import stakes
from gpurun.engine.plan import ASK_WITHIN_S, Candidate, Plan, plan_among
from gpurun.errors import BudgetError, NoOffer, ProviderError, UsageError
from gpurun.model import Budget, Offer
from gpurun.recipe import find, load
from gpurun.settings import Settings
from gpurun.wiring import provisioner
from tests.clouds.serve import Cloud, cloud
from tests.clouds.stub import StubBoxes
from tests.fakecloud import FakeClock, FakeCloud
from tests.homes import Home

RATE = Decimal("7.56")
BUDGET = Budget(Decimal(10), Decimal(13), 2400, 1800, 300, 600)
OFFER = Offer("vast", "77", "H100 SXM", 4, RATE, 200)
BOTH = ("prime", "vast")


@pytest.fixture(scope="module")
def clouds() -> Iterator[tuple[Cloud, Cloud]]:
    with (
        cloud("prime", boxes=StubBoxes()) as prime,
        cloud("vast", boxes=StubBoxes()) as vast,
    ):
        yield prime, vast


@dataclass
class Buyer:
    """Keys for both clouds, and plans made in this process."""

    prime: Cloud
    vast: Cloud
    settings: Settings

    def plan(
        self,
        *providers: str,
        overrides: Sequence[str] = (),
        offer_id: str | None = None,
        within_s: float = ASK_WITHIN_S,
        **settings: Any,
    ) -> Plan:
        recipes = {name: load("smoke", provider=name, overrides=overrides) for name in providers}
        return plan_among(
            recipes,
            find("smoke").parent,
            offer_id=offer_id,
            settings=self.settings.model_copy(update=settings),
            clock=SystemClock(),
            within_s=within_s,
        )

    @contextmanager
    def refused(self, kind: type[Exception]) -> Iterator[pytest.ExceptionInfo[Exception]]:
        """Refused with this error, and nothing was rented by asking."""
        with pytest.raises(kind) as caught:
            yield caught
        assert not self.prime.meter().instances and not self.vast.meter().instances


@pytest.fixture
def buyer(
    clouds: tuple[Cloud, Cloud], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Buyer]:
    prime, vast = clouds
    for name, value in (
        ("HOME", str(tmp_path)),
        ("GPURUN_HOME", str(tmp_path / "state")),
        ("PRIME_API_BASE_URL", prime.url),
        ("VAST_URL", vast.url),
    ):
        monkeypatch.setenv(name, value)
    for name in ("PRIME_API_KEY", "VAST_API_KEY", "PRIME_TEAM_ID", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    keys = {"prime": prime.api_key, "vast": vast.api_key}
    yield Buyer(prime, vast, Settings(keys=keys, accept_one_guard=True))
    prime.clear()
    vast.clear()


# Where.


def test_any_takes_the_provider_where_the_run_is_expected_to_cost_least(buyer: Buyer) -> None:
    plan = buyer.plan(*BOTH)
    assert plan.provider == "vast"
    assert [offer.provider for offer in plan.others] == ["vast", "vast"]
    [other] = plan.elsewhere
    assert (other.provider, other.why.split(":")[0]) == ("prime", "dearer")
    assert "$8.76/h" in other.why and "$10.22 expected" in other.why
    buyer.vast.fault("offers_up", factor=1.3)
    plan = buyer.plan(*BOTH)
    assert (plan.provider, plan.elsewhere[0].provider) == ("prime", "vast")


def test_the_price_of_the_network_decides_too() -> None:
    """At the same rate, 6 GB in at 2 cents make the difference."""
    dear = replace(OFFER, usd_per_gb_down=Decimal("0.02"))
    recipe, fake = load("smoke", provider="vast"), FakeCloud(FakeClock())
    costs = [Candidate("fake", fake, (offer,)).expected_usd(recipe) for offer in (OFFER, dear)]
    assert costs[1] - costs[0] == Decimal("0.12")


@pytest.mark.parametrize(
    ("fault", "values", "why"),
    [
        ("html", {}, "no sensible answer"),
        ("key_revoked", {}, "run `gpurun auth vast`"),
        ("auth_404", {}, "run `gpurun auth vast`"),
        ("credit_zero", {}, "the credit at vast is $0.00"),
        ("search_empty", {"times": None}, "offers nothing for 4x H100"),
    ],
)
def test_one_that_cannot_be_had_hides_nobody_and_is_told(
    buyer: Buyer, fault: str, values: dict[str, Any], why: str
) -> None:
    buyer.vast.fault(fault, **values)
    plan = buyer.plan(*BOTH)
    assert plan.provider == "prime"
    [other] = plan.elsewhere
    assert other.provider == "vast" and why in other.why
    assert why in show.plan_text(plan, steps=False)


def test_one_that_hangs_costs_a_bounded_time(buyer: Buyer) -> None:
    buyer.vast.fault("down", how="hang")
    plan = buyer.plan(*BOTH, within_s=3.0)
    assert plan.provider == "prime"
    assert plan.elsewhere[0].why == "vast did not answer in 3 s"


def test_a_provider_whose_guards_do_not_suffice_is_passed_over(buyer: Buyer) -> None:
    buyer.vast.fault("offers_up", factor=1.3)
    plan = buyer.plan(*BOTH, accept_one_guard=False)
    assert plan.provider == "vast"
    assert "min_guards is 2" in plan.elsewhere[0].why


def test_each_provider_has_its_own_values_of_the_recipe(buyer: Buyer, tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(
        "name: two\nneed:\n  gpu: H100\n  gpu_count: 4\n  disk_gb: 200\n"
        "budget:\n  max_usd_per_hour: 20\n  max_usd: 40\n  run_minutes: 30\n"
        "train:\n  run: 'true'\n"
        "per_provider:\n  prime:\n    need:\n      gpu_count: 1\n"
    )
    recipes = {name: load(str(path), provider=name) for name in BOTH}
    plan = plan_among(
        recipes, tmp_path, offer_id=None, settings=buyer.settings, clock=SystemClock()
    )
    assert (plan.provider, plan.offer.gpu_count, plan.recipe.need.gpu_count) == ("prime", 1, 1)


def test_an_offer_finds_its_provider(buyer: Buyer) -> None:
    wanted = buyer.plan("prime").others[0]
    plan = buyer.plan(*BOTH, offer_id=wanted.id)
    assert (plan.provider, plan.offer.id, plan.others) == ("prime", wanted.id, ())
    assert "has no offer" in plan.elsewhere[0].why
    with buyer.refused(NoOffer) as caught:
        buyer.plan(*BOTH, offer_id="4711")
    assert "prime has no offer 4711" in str(caught.value)
    assert "vast has no offer 4711" in str(caught.value)


# What ends the bill.


def test_at_vast_three_guards_can_and_the_last_is_told_in_dollars(buyer: Buyer) -> None:
    plan = buyer.plan("vast", min_guards=3, accept_one_guard=False)
    assert plan.money_guards == len(plan.guards) == 3
    hour = plan.guards[2].split(" at ")[1][: len("Nov 21 13:00 UTC")]
    assert hour.endswith(":00 UTC")
    assert f"vast ends it by {hour} (+$8.32 at worst)" in plan.worst_case


@pytest.mark.parametrize("minute", range(0, 60, 7))
@pytest.mark.parametrize("second", [0, 1, 59])
def test_the_worst_is_never_less_than_what_may_come(buyer: Buyer, minute: int, second: int) -> None:
    vast = provisioner("vast", buyer.settings, SystemClock())
    now = datetime(2026, 11, 21, 11, minute, second, tzinfo=UTC)
    setup = setup_timer(now, BUDGET, RATE, vast.traits)
    said = stakes.worst_case(vast, OFFER, setup)
    assert "(+$8.32 at worst)" in said
    for later in range(61):
        ends_at = setup.ends_at + timedelta(minutes=later)
        beyond = vast.timer_fires_at(ends_at) - ends_at
        assert RATE * Decimal(beyond.total_seconds()) / 3600 < Decimal("8.32")
    fires_at = vast.timer_fires_at(setup.ends_at)
    assert f"{fires_at:%b %d %H:%M} UTC" in said


def test_at_prime_one_can_and_the_wallet_is_named(buyer: Buyer) -> None:
    plan = buyer.plan("prime")
    assert plan.money_guards == 1
    assert plan.worst_case == (
        "If this machine dies now ($8.76/h): nothing else can end it; your wallet holds $100.00."
    )
    with buyer.refused(UsageError) as caught:
        buyer.plan("prime", accept_one_guard=False)
    assert "1 guard could end the bill of prime offer" in str(caught.value)
    assert "your wallet holds $100.00" in str(caught.value)
    assert "--accept-one-guard" in str(caught.value)


def test_a_key_for_the_box_is_a_second_guard(buyer: Buyer) -> None:
    keys = {"prime": "pit_made_for_the_box_1234"}
    found = Settings(keys=buyer.settings.keys, box_keys=keys)
    plan = replace(buyer, settings=found).plan("prime")
    assert plan.money_guards == 2
    assert "until gpurun has reached the box, nothing else can end it" in plan.worst_case
    assert "the key for the box must last until" in plan.remarks[0]


def test_a_key_for_the_box_must_outlast_the_fuse_by_an_hour(buyer: Buyer) -> None:
    at = datetime(2026, 12, 31, 22, 55, tzinfo=UTC)
    keys = {"prime": "pit_made_for_the_box_1234"}
    found = Settings(keys=buyer.settings.keys, box_keys=keys)
    keyed, plain = (provisioner("prime", each, SystemClock()) for each in (found, buyer.settings))
    ends = Deadlines(at, at + timedelta(minutes=5), at)
    assert "until Jan 01 00:02 UTC" in stakes.key_remark(keyed, ends)
    assert stakes.key_remark(plain, ends) == ""


# What can be spent.


class Purse(FakeCloud):
    """A provider that rents as long as there is credit."""

    def __init__(self, credit_usd: Decimal | ProviderError | None) -> None:
        super().__init__(FakeClock())
        self._credit = credit_usd

    def credit_usd(self) -> Decimal | None:
        if isinstance(self._credit, ProviderError):
            raise self._credit
        return self._credit


def credit(amount: Decimal | ProviderError | None) -> stakes.Credit:
    return stakes.credit(Purse(amount), BUDGET, OFFER, Decimal("10.25"))


def test_a_credit_that_pays_no_minute_of_training_is_refused_with_the_figure() -> None:
    traits = FakeCloud.traits
    least = Decimal((2400 + 60 + 300 + 120 + traits.tail_s) / 3600) * RATE
    with pytest.raises(BudgetError, match=r"the credit at \w+ is \$2.00, but at \$7.56/h") as said:
        credit(Decimal(2))
    assert f"${least:.2f}" in str(said.value)
    with pytest.raises(BudgetError):
        credit(least - Decimal("0.01"))
    assert credit(least + Decimal("0.01")).remark
    moves = replace(OFFER, usd_per_gb_down=Decimal("0.02"))
    with pytest.raises(BudgetError):
        stakes.credit(Purse(least + Decimal("0.01")), BUDGET, moves, Decimal("10.25"))


def test_a_credit_below_the_ceiling_is_said() -> None:
    low = credit(Decimal("10.24"))
    assert low.usd == Decimal("10.24")
    assert "less than the $10.25 that this may cost" in low.remark
    assert credit(Decimal("10.25")) == stakes.Credit(Decimal("10.25"))


def test_a_credit_that_nobody_tells_is_said_and_forbids_nothing() -> None:
    assert "may not see it" in credit(None).remark
    assert "the wallet is on fire" in credit(ProviderError("the wallet is on fire")).remark
    assert stakes.credit(FakeCloud(FakeClock()), BUDGET, OFFER, RATE) == stakes.Credit()


def test_the_credit_is_in_the_plan(buyer: Buyer) -> None:
    for provider in BOTH:
        plan = buyer.plan(provider)
        assert plan.credit_usd == 100
        assert plan.remarks == ()
        assert "credit    $100.00" in show.plan_text(plan, steps=False)
        assert show.plan_document(plan)["credit_usd"] == "100.00"
    buyer.prime.fault("key_scopes", scopes="availability:read, instances:write, user:read")
    assert "may not see it" in show.plan_text(buyer.plan("prime"), steps=False)


# What else is said.


def test_training_on_the_cpu_of_a_box_with_gpus_is_said(buyer: Buyer) -> None:
    plan = buyer.plan("vast", overrides=["setup.device=cpu"])
    assert plan.remarks[0].startswith("setup.device is cpu: 4x H100 SXM are paid for")
    assert "note      setup.device is cpu" in show.plan_text(plan, steps=False)
    assert not buyer.plan("vast").remarks


def test_what_is_expected_is_never_more_than_the_ceiling(buyer: Buyer) -> None:
    for overrides in ((), ("budget.run_minutes=600",)):
        plan = buyer.plan("vast", overrides=overrides)
        assert plan.expected_usd <= plan.ceiling_usd <= 13
    assert plan.shortened_by_money


# Through the command line.


@pytest.fixture
def home(clouds: tuple[Cloud, Cloud], tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    for each in clouds:
        home.open_account(each)
    yield home
    for each in clouds:
        each.clear()
    assert not home.places.database.exists(), "nothing was begun"
    assert all(not each.meter().instances for each in clouds), "and nothing bought"


def test_any_leaves_this_machine_out_unless_it_is_named_beside(home: Home) -> None:
    said = json.loads(home.run("up", "smoke", "--provider", "any", "--dry-run", "--json").stdout)
    assert said["provider"] == "vast"
    assert {each["provider"] for each in said["elsewhere"]} == {"prime"}
    assert (said["money_guards"], said["credit_usd"]) == (3, "100.00")
    assert Decimal(said["offer"]["expected_usd"]) <= Decimal(said["ceiling_usd"])
    named = home.work / "named.yaml"
    named.write_text(find("smoke").read_text().replace("- local\n", "- any\n  - local\n", 1))
    said = json.loads(home.run("up", named, "--dry-run", "--json").stdout)
    assert said["provider"] == "local"
    assert {each["provider"] for each in said["elsewhere"]} == set(BOTH)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--provider", "vast", "--set", "need.gpu=H1000"], 3, ["H1000", "did you mean"]),
        (["--provider", "prime", "--set", "need.gpu=H1000"], 3, ["H1000", "did you mean"]),
        (["--provider", "any", "--set", "need.gpu_count=64"], 3, ["64x H100", "prime", "vast"]),
        (
            ["--provider", "any", "--set", "budget.max_usd_per_hour=5"],
            3,
            ["the cheapest H100 SXM now is 7.561667 (vast 1704", "8.76 (prime datacrunch-"],
        ),
        (["--provider", "vast", "--offer", "4711"], 3, ["vast has no offer 4711 now"]),
        (["--provider", "prime"], 2, ["--accept-one-guard", "your wallet holds $100.00"]),
        (["--provider", "vast", "--max-usd", "2"], 3, ["budget.max_usd is 2.00"]),
    ],
)
def test_what_cannot_be_had_is_one_clear_refusal(
    home: Home, arguments: Sequence[str], code: int, says: Sequence[str]
) -> None:
    done = home.run("up", "smoke", "--yes", *arguments)
    assert done.returncode == code, done.stderr
    assert all(word in done.stderr for word in says), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("provider", BOTH)
@pytest.mark.parametrize(
    ("fault", "code", "says"),
    [
        ("key_revoked", 4, "gpurun auth {}"),
        ("html", 4, "sensible answer"),
        ("credit_zero", 3, "the credit at {} is $0.00"),
    ],
)
def test_a_cloud_that_refuses_is_one_clear_error(
    home: Home, clouds: tuple[Cloud, Cloud], provider: str, fault: str, code: int, says: str
) -> None:
    clouds[BOTH.index(provider)].fault(fault)
    done = home.run("up", "smoke", "--yes", "--provider", provider, "--accept-one-guard")
    assert done.returncode == code, done.stderr
    assert says.format(provider) in done.stderr
    assert "Traceback" not in done.stderr


def test_no_key_and_a_dead_host_are_told_apart(home: Home) -> None:
    home.env |= {"VAST_URL": "http://127.0.0.1:9", "PRIME_API_BASE_URL": "http://127.0.0.1:9"}
    dead = home.run("up", "smoke", "--yes", "--provider", "any")
    assert dead.returncode == 4
    assert "prime" in dead.stderr and "vast" in dead.stderr
    home.config.unlink()
    for provider in BOTH:
        without = home.run("up", "smoke", "--yes", "--provider", provider)
        assert without.returncode == 2
        assert f"run `gpurun auth {provider}`" in without.stderr
    nobody = home.run("up", "smoke", "--yes", "--provider", "any")
    assert nobody.returncode == 2
    assert "there is no provider to ask" in nobody.stderr
