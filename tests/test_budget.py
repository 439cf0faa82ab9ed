"""Money maths: the ceiling never passes the budget, and no cent is lost between phases."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpurun import budget as money
from gpurun.errors import BudgetError, UsageError
from gpurun.model import Budget, Offer
from gpurun.provider import Traits
from provisioners.vast.jobs import fires_at

NOW = datetime(2026, 11, 21, 11, 0, tzinfo=UTC)
VAST = Traits(settle_window_s=120, proof_gap_s=20, tail_s=360, fuse_ends_bill=True)
SMOKE = Budget(
    max_usd_per_hour=Decimal("10.00"),
    max_usd=Decimal("13.00"),
    setup_s=40 * 60,
    run_s=30 * 60,
    grace_s=5 * 60,
    idle_s=10 * 60,
)
FREE = Decimal(0)
minutes = st.floats(min_value=0.01, max_value=3000).map(lambda each: each * 60)
dollars = st.decimals(min_value=Decimal("0.01"), max_value=5000, places=2)
rates = st.decimals(min_value=Decimal("0.0001"), max_value=200, places=4) | st.just(FREE)
budgets = st.builds(
    Budget,
    max_usd_per_hour=st.just(Decimal(200)),
    max_usd=dollars,
    setup_s=minutes,
    run_s=minutes,
    grace_s=minutes,
    idle_s=st.just(600.0),
)
traits = st.builds(
    Traits, st.just(10.0), st.just(1.0), st.floats(min_value=0, max_value=900), st.just(True)
)


def possible(budget: Budget, rate: Decimal, of: Traits, beside: Decimal) -> bool:
    try:
        money.check_possible(budget, rate, of, beside)
    except BudgetError:
        return False
    return True


def at(clock: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-21T{clock}+00:00")


def test_the_setup_timer_has_a_grace_of_one_minute() -> None:
    ends = money.setup_timer(NOW, SMOKE, Decimal("7.56"), VAST)
    assert (ends.fires_at, ends.ends_at) == (at("11:40:00"), at("11:41:00"))
    assert ends.fuse_at == at("11:43:00")
    # $13 pay 6190.476190 s; the fuse's margin and the tail are 480 s of it.
    assert ends.ceiling_at == at("12:35:10.476190")


def test_a_run_that_the_money_pays_in_full_is_not_shortened() -> None:
    ends = money.run_timer(NOW, SMOKE, Decimal("7.56"), Decimal("5.04"), VAST)
    assert (ends.fires_at, ends.ends_at) == (at("11:30:00"), at("11:35:00"))
    assert not ends.shortened_by_money


def test_a_run_is_shortened_to_what_the_money_left_pays_and_says_so() -> None:
    ends = money.run_timer(NOW, SMOKE, Decimal("10"), Decimal("7.00"), VAST)
    # $6 pay 36 minutes: 5 of grace, 2 of fuse margin, 6 of tail leave 23.
    assert ends.fires_at == at("11:23:00")
    assert ends.shortened_by_money
    assert money.ceiling_usd(Decimal("10"), NOW, ends, VAST) == Decimal("6")


def test_money_for_less_than_a_minute_of_training_is_refused() -> None:
    with pytest.raises(BudgetError, match=r"\$10\.70 of budget\.max_usd \$13\.00 is spent"):
        money.run_timer(NOW, SMOKE, Decimal("10"), Decimal("10.70"), VAST)


def test_a_plan_that_was_just_possible_is_not_refused_by_a_rounding() -> None:
    tight = Budget(Decimal(9), Decimal("0.07"), setup_s=60, run_s=60, grace_s=60, idle_s=60)
    tail = Traits(settle_window_s=10, proof_gap_s=1, tail_s=0.1, fuse_ends_bill=True)
    rate = Decimal("0.07") * 3600 / Decimal("300.1")
    money.check_possible(tight, rate, tail)
    armed_at = NOW + timedelta(seconds=60)
    run = money.run_timer(armed_at, tight, rate, money.cost(rate, 60), tail)
    assert run.fires_at - armed_at >= timedelta(seconds=59.9)


@pytest.mark.parametrize("spent", ["0", "13", "1000"])
def test_at_no_price_money_shortens_nothing(spent: str) -> None:
    poor = Budget(Decimal(0), Decimal(0), 600, 1800, 300, 600)
    money.check_possible(poor, FREE, VAST)
    ends = money.run_timer(NOW, poor, FREE, Decimal(spent), VAST)
    assert ends.fires_at == at("11:30:00")
    assert not ends.shortened_by_money
    assert ends.ceiling_at == NOW + timedelta(days=90)
    assert money.setup_timer(NOW, poor, FREE, VAST).ends_at == at("11:11:00")
    assert money.reserve(poor, FREE, NOW, ends, VAST, FREE) == 0


@settings(max_examples=1000)
@given(budgets, rates, traits, st.just(FREE) | st.decimals(min_value=0, max_value=5, places=2))
def test_what_is_possible_never_costs_more_than_max_usd(
    budget: Budget, rate: Decimal, of: Traits, beside: Decimal
) -> None:
    assume(possible(budget, rate, of, beside))
    setup = money.setup_timer(NOW, budget, rate, of, beside)
    assert beside + money.ceiling_usd(rate, NOW, setup, of) <= budget.max_usd
    assert setup.ends_at <= setup.ceiling_at
    # The dataset is verified in the last second of the setup.
    armed_at, spent = setup.fires_at, beside + money.cost(rate, budget.setup_s)
    run = money.run_timer(armed_at, budget, rate, spent, of)
    assert spent + money.ceiling_usd(rate, armed_at, run, of) <= budget.max_usd
    assert run.fires_at - armed_at >= timedelta(seconds=min(budget.run_s, 59.99))
    assert run.ends_at <= run.ceiling_at
    shorter = run.fires_at < armed_at + timedelta(seconds=budget.run_s)
    assert run.shortened_by_money == shorter
    assert beside + money.ceiling_usd(rate, NOW, run, of) <= (
        money.ceiling_of_plan(budget, rate, of, beside) + Decimal("0.000001")
    )


@settings(max_examples=1000)
@given(budgets, rates, traits, dollars)
def test_a_run_timer_is_within_the_money_left_or_refused(
    budget: Budget, rate: Decimal, of: Traits, spent: Decimal
) -> None:
    try:
        run = money.run_timer(NOW, budget, rate, spent, of)
    except BudgetError:
        return
    if rate:
        assert spent + money.ceiling_usd(rate, NOW, run, of) <= budget.max_usd


@given(st.datetimes(min_value=datetime(2026, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_keeper_then_fuse_then_provider(ends_at: datetime) -> None:
    assume(ends_at.year < 9999)
    ends = money.Deadlines(ends_at, ends_at, ends_at)
    assert ends.ends_at < ends.fuse_at < fires_at(ends.ends_at)
    assert timedelta(minutes=5) <= fires_at(ends.ends_at) - ends.ends_at < timedelta(minutes=65)


def test_a_budget_too_small_for_setup_and_one_minute_is_impossible() -> None:
    # 40 + 1 + 5 + 2 + 6 minutes at $10/h are $9.
    money.check_possible(_with_max_usd("9.00"), Decimal("10"), VAST)
    with pytest.raises(BudgetError) as told:
        money.check_possible(_with_max_usd("8.99"), Decimal("10"), VAST)
    assert str(told.value) == (
        "budget.max_usd is 8.99, but at $10/h the setup, one minute of training, its grace and "
        "the end of the box may cost $9.00. Raise max_usd (`gpurun up ... --max-usd X`), or "
        "shorten budget.setup_minutes."
    )
    assert told.value.exit_code == 3


def test_an_attempt_after_a_costly_one_is_refused_before_it_is_bought() -> None:
    rate = Decimal("10")
    with pytest.raises(BudgetError):
        money.setup_timer(NOW, SMOKE, rate, VAST, spent_usd=Decimal("5.51"))
    ends = money.setup_timer(NOW, SMOKE, rate, VAST, spent_usd=Decimal("4.83"))
    amount = money.reserve(SMOKE, rate, NOW, ends, VAST, Decimal("4.83"))
    assert amount == Decimal("8.17")  # the setup needs 49 minutes, $8.1667: training the rest
    with pytest.raises(BudgetError, match="more than"):
        money.reserve(SMOKE, rate, NOW, ends, VAST, Decimal("4.84"))


def test_setup_and_training_are_reserved_before_anything_is_bought() -> None:
    rate = Decimal("7.56")
    ends = money.setup_timer(NOW, SMOKE, rate, VAST)
    # 40 minutes of setup, 30 of training, 5 of grace, 2 of the fuse's margin, 6 of tail.
    assert money.reserve(SMOKE, rate, NOW, ends, VAST, FREE) == money.cost(rate, 83 * 60)


def test_an_offer_above_the_cap_is_refused_with_both_prices() -> None:
    offer = Offer("vast", "812", "RTX 4090", 1, Decimal("0.71"), 100)
    cap = Budget(Decimal("0.60"), Decimal(5), 600, 600, 60, 60)
    with pytest.raises(BudgetError) as told:
        money.check_price(offer, cap)
    assert str(told.value).startswith(
        "budget.max_usd_per_hour is 0.60, the cheapest RTX 4090 now is 0.71 (vast 812)."
    )
    money.check_price(offer, Budget(Decimal("0.71"), Decimal(5), 600, 600, 60, 60))


def test_a_cost_is_exact() -> None:
    assert money.cost(Decimal("7.56"), 60) == Decimal("0.126")
    assert money.cost(Decimal("0.36"), 0.1) == Decimal("0.00001")
    assert money.cost(FREE, 1e6) == 0


names = st.text(max_size=3)
amounts = st.decimals(min_value=0, max_value=1000, places=6)


@settings(max_examples=500)
@given(st.dictionaries(names, amounts, min_size=1, max_size=12), amounts)
def test_phase_dollars_sum_to_the_total_to_the_cent(
    phases: dict[str, Decimal], total: Decimal
) -> None:
    given_out = money.allocate_cents(phases, total)
    cents = (total * 100).to_integral_value("ROUND_HALF_UP") / 100
    assert sum(given_out.values()) == cents
    assert list(given_out) == list(phases)
    assert all(usd >= 0 and usd == round(usd, 2) for usd in given_out.values())


@given(st.dictionaries(names, amounts, min_size=1, max_size=12))
def test_no_phase_is_a_cent_or_more_off_its_own_dollars(phases: dict[str, Decimal]) -> None:
    given_out = money.allocate_cents(phases, sum(phases.values(), Decimal(0)))
    assume(sum(phases.values()) >= 1)
    for name, usd in phases.items():
        assert abs(given_out[name] - usd) < Decimal("0.016")


def test_thirds_of_a_dime_keep_the_dime() -> None:
    thirds = dict.fromkeys(("rent", "train", "destroy"), Decimal("0.033333"))
    assert money.allocate_cents(thirds, Decimal("0.10")) == {
        "rent": Decimal("0.04"),
        "train": Decimal("0.03"),
        "destroy": Decimal("0.03"),
    }
    assert money.allocate_cents({}, Decimal(0)) == {}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30m", 1800),
        ("1.5h", 5400),
        ("90s", 90),
        ("1h30m", 5400),
        ("45", 2700),
        (" 2H ", 7200),
        ("0.5", 30),
        ("1d", 86400),
        ("1d2h3m4s", 93784),
        ("90d", 90 * 86400),
    ],
)
def test_a_duration_is_read_in_the_units_people_write(text: str, seconds: float) -> None:
    assert money.parse_duration(text) == seconds


NO_DURATIONS = ["", " ", "0", "0s", "-5m", "5 m", "m", "h30", "30m1h", "1:30", "1e3", "nan", "inf"]
NO_DURATIONS += ["91d", "5x", "1.m", ".5h", "1,5h", "\u0661m", "9" * 400]


@pytest.mark.parametrize("text", NO_DURATIONS)
def test_what_is_no_duration_is_a_usage_error_that_shows_how(text: str) -> None:
    with pytest.raises(UsageError, match=r"Write 30m, 1\.5h"):
        money.parse_duration(text)


@given(st.text(max_size=12))
def test_no_text_crashes_the_reading_of_durations(text: str) -> None:
    with suppress(UsageError):
        assert 0 < money.parse_duration(text) <= money.LONGEST_S


def _with_max_usd(max_usd: str) -> Budget:
    return Budget(SMOKE.max_usd_per_hour, Decimal(max_usd), 40 * 60, 30 * 60, 5 * 60, 600)


@pytest.mark.parametrize(("text", "usd"), [("30", "30"), (" $12.50 ", "12.50"), ("1000000", "1e6")])
def test_dollars_are_written_plainly(text: str, usd: str) -> None:
    assert money.parse_usd(text) == Decimal(usd)


@pytest.mark.parametrize(
    "text", ["", "0", "0.00", "-3", "nan", "inf", "1e9", "1000000.01", "30 USD", "1,000", "٣"]
)
def test_what_is_no_amount_of_dollars_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no amount of dollars between 0 and 1000000"):
        money.parse_usd(text)
