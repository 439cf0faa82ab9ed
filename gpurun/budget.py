"""Money maths, pure: may this be rented, until when, what will it cost.

Money is Decimal US dollars, *_s are seconds.  `max_usd` bounds the ceiling: what the box costs if
the keeper is dead and only the fuse ends it, billing tail included.  So a run's deadline is
computed backwards from the money that is left.  A price of 0 never shortens anything.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

from gpurun.errors import BudgetError, UsageError
from gpurun.model import Budget, Offer
from gpurun.provider import Traits

SETUP_GRACE_S = 60.0
FUSE_MARGIN_S = 120.0  # the fuse never cuts a collection that the keeper is making
LEAST_RUN_S = 60.0
LONGEST_S = 90 * 86400.0
GHOST_RESERVE_S = 900.0  # kept reserved for an attempt that may still appear
CENT = Decimal("0.01")
MOST_USD = Decimal(1_000_000)
# What a run moves, about: torch with its CUDA libraries, and a dataset; checkpoints and logs.
DOWN_GB, UP_GB = Decimal(6), Decimal(2)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """When training stops, when the box goes, and the latest end that the money could ever pay."""

    fires_at: datetime
    ends_at: datetime
    ceiling_at: datetime
    shortened_by_money: bool = False

    @property
    def fuse_at(self) -> datetime:
        return self.ends_at + timedelta(seconds=FUSE_MARGIN_S)


def setup_timer(
    now: datetime,
    budget: Budget,
    usd_per_hour: Decimal,
    traits: Traits,
    spent_usd: Decimal = Decimal(0),
) -> Deadlines:
    """The timer in force from before the rent until the dataset is verified."""
    fires_at = now + timedelta(seconds=budget.setup_s)
    ends_at = fires_at + timedelta(seconds=SETUP_GRACE_S)
    ceiling_at = paid_until(now, budget.max_usd - spent_usd, usd_per_hour, traits)
    if ceiling_at < ends_at:
        raise _impossible(budget, usd_per_hour, traits, spent_usd)
    return Deadlines(fires_at, ends_at, ceiling_at)


def run_timer(
    now: datetime, budget: Budget, usd_per_hour: Decimal, spent_usd: Decimal, traits: Traits
) -> Deadlines:
    """The timer of the training.  `spent_usd` holds all of the run's open reservations but this."""
    ceiling_at = paid_until(now, budget.max_usd - spent_usd, usd_per_hour, traits)
    paid_s = (ceiling_at - now).total_seconds() - budget.grace_s
    # A second of slack: what `check_possible` let pass must not fail here by a rounding.
    if paid_s < min(budget.run_s, LEAST_RUN_S - 1):
        raise BudgetError(
            f"${_usd(spent_usd)} of budget.max_usd ${_usd(budget.max_usd)} is spent or reserved; "
            f"at ${usd_per_hour}/h the rest pays no minute of training. "
            "Raise budget.max_usd (`gpurun up ... --max-usd X`)."
        )
    grace = timedelta(seconds=budget.grace_s)
    wanted_at = now + timedelta(seconds=budget.run_s)
    fires_at = min(wanted_at, ceiling_at - grace)
    return Deadlines(fires_at, fires_at + grace, ceiling_at, fires_at < wanted_at)


def paid_until(now: datetime, left_usd: Decimal, usd_per_hour: Decimal, traits: Traits) -> datetime:
    """The latest end that `left_usd` can pay, the fuse's margin and the billing tail included."""
    longest_s = Fraction(LONGEST_S)
    if usd_per_hour > 0:
        paid_s = Fraction(max(left_usd, Decimal(0))) / Fraction(usd_per_hour) * 3600
        longest_s = min(longest_s, paid_s - Fraction(FUSE_MARGIN_S) - Fraction(traits.tail_s))
    return now + timedelta(microseconds=math.floor(longest_s * 1_000_000))


def cost(usd_per_hour: Decimal, seconds: float) -> Decimal:
    """Exact to 28 digits; never rounded to cents here."""
    return usd_per_hour * Decimal(str(seconds)) / 3600


def ceiling_usd(
    usd_per_hour: Decimal, started_at: datetime, deadlines: Deadlines, traits: Traits
) -> Decimal:
    """The most that a box can cost from `started_at` on if only the fuse ends it."""
    return cost(usd_per_hour, (deadlines.fuse_at - started_at).total_seconds() + traits.tail_s)


def ceiling_of_plan(
    budget: Budget, usd_per_hour: Decimal, traits: Traits, beside_usd: Decimal = Decimal(0)
) -> Decimal:
    """The most that the whole run can cost, as printed before the purchase."""
    longest_s = budget.setup_s + max(SETUP_GRACE_S, budget.run_s + budget.grace_s)
    everything = cost(usd_per_hour, longest_s + FUSE_MARGIN_S + traits.tail_s)
    return min(everything + beside_usd, budget.max_usd)


def traffic_usd(offer: Offer) -> Decimal:
    """What a run moves, about, where bytes have a price beside the rate."""
    return DOWN_GB * offer.usd_per_gb_down + UP_GB * offer.usd_per_gb_up


def reserve(
    budget: Budget,
    usd_per_hour: Decimal,
    now: datetime,
    deadlines: Deadlines,
    traits: Traits,
    committed_usd: Decimal,
) -> Decimal:
    """What to reserve for an attempt from now on; `committed_usd` is spent or reserved already.

    `deadlines` is the setup's: all of that must be payable, and what the training may cost is
    reserved with it, as far as the money goes.
    """
    amount = ceiling_usd(usd_per_hour, now, deadlines, traits)
    if committed_usd + amount > budget.max_usd:
        raise BudgetError(
            f"this needs ${_usd(amount)} beside ${_usd(committed_usd)} spent or reserved, more "
            f"than budget.max_usd ${_usd(budget.max_usd)}. Raise it (`gpurun up ... --max-usd X`)."
        )
    return min(ceiling_of_plan(budget, usd_per_hour, traits), budget.max_usd - committed_usd)


def check_possible(
    budget: Budget, usd_per_hour: Decimal, traits: Traits, beside_usd: Decimal = Decimal(0)
) -> None:
    """Whole setup, a minute of training, its grace and the fuse's margin must be payable, and what
    is billed beside the rate.
    """
    if least_usd(budget, usd_per_hour, traits) + beside_usd > budget.max_usd:
        raise _impossible(budget, usd_per_hour, traits, beside_usd)


def least_usd(budget: Budget, usd_per_hour: Decimal, traits: Traits) -> Decimal:
    """Whole setup, a minute of training, its grace, the fuse's margin and the billing tail."""
    least_s = budget.setup_s + LEAST_RUN_S + budget.grace_s + FUSE_MARGIN_S + traits.tail_s
    return cost(usd_per_hour, least_s)


def check_price(offer: Offer, budget: Budget) -> None:
    if offer.usd_per_hour > budget.max_usd_per_hour:
        raise BudgetError(
            f"budget.max_usd_per_hour is {budget.max_usd_per_hour}, the cheapest "
            f"{offer.gpu or 'machine'} now is {offer.usd_per_hour} ({offer.provider} {offer.id}). "
            "Raise it, or wait; `gpurun offers` shows what else there is."
        )


def allocate_cents(seconds_usd: Mapping[str, Decimal], total: Decimal) -> dict[str, Decimal]:
    """Dollars by phase, in cents that sum to the total's (largest remainder)."""
    if not seconds_usd:
        return {}
    cents = int((total / CENT).to_integral_value(ROUND_HALF_UP))
    whole = sum((Fraction(usd) for usd in seconds_usd.values()), Fraction(0))
    shares = {
        name: Fraction(usd) / whole * cents if whole else Fraction(cents, len(seconds_usd))
        for name, usd in seconds_usd.items()
    }
    given = {name: math.floor(share) for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: given[name] - shares[name])
    for name in by_remainder[: cents - sum(given.values())]:
        given[name] += 1
    return {name: given[name] * CENT for name in seconds_usd}


def parse_usd(text: str) -> Decimal:
    """Dollars of "30" or "12.50", as a run may cost them at most."""
    plain = text.strip().removeprefix("$")
    usd = Decimal(plain) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", plain) else Decimal(0)
    if not 0 < usd <= MOST_USD:
        raise UsageError(f"{text!r} is no amount of dollars between 0 and {MOST_USD}. Write 30.00.")
    return usd


def parse_duration(text: str) -> float:
    """Seconds of "30m", "1.5h", "90s", "1h30m", "2d"; a bare number is minutes."""
    wrong = UsageError(
        f"{text!r} is not a duration between 0 and 90 days. Write 30m, 1.5h, 90s or 1h30m; "
        "a bare number is minutes."
    )
    plain = text.strip().lower()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", plain):
        plain += "m"
    number = r"([0-9]+(?:\.[0-9]+)?)"
    parts = re.fullmatch(rf"(?:{number}d)?(?:{number}h)?(?:{number}m)?(?:{number}s)?", plain)
    if parts is None:
        raise wrong
    units_s = zip(parts.groups(), (86400, 3600, 60, 1), strict=True)
    seconds = sum(float(amount) * unit_s for amount, unit_s in units_s if amount)
    if not 0 < seconds <= LONGEST_S:
        raise wrong
    return seconds


def _impossible(
    budget: Budget, usd_per_hour: Decimal, traits: Traits, spent_usd: Decimal
) -> BudgetError:
    least = least_usd(budget, usd_per_hour, traits) + spent_usd
    return BudgetError(
        f"budget.max_usd is {_usd(budget.max_usd)}, but at ${usd_per_hour}/h the setup, one minute "
        f"of training, its grace and the end of the box may cost ${_usd(least)}. Raise max_usd "
        "(`gpurun up ... --max-usd X`), or shorten budget.setup_minutes."
    )


def _usd(amount: Decimal) -> str:
    return f"{amount:.2f}"
