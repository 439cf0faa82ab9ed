"""What can end the bill of a purchase, what it costs if this machine dies, what can be spent."""

import math
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_CEILING, Decimal

from gpurun import budget as money
from gpurun.budget import Deadlines
from gpurun.clock import after
from gpurun.errors import BudgetError, ProviderError, UsageError
from gpurun.model import Budget, Offer
from gpurun.provider import KeepsTimers, KeyOnBox, Prepaid, Provisioner
from gpurun.recipe import Recipe
from gpurun.settings import Settings

SCHEDULER_LATE_S = 60.0
KEY_SPARE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Credit:
    """What the provider would let us spend; `remark` is empty where that is enough."""

    usd: Decimal | None = None
    remark: str = ""


def guards(cloud: Provisioner, setup: Deadlines) -> tuple[str, ...]:
    """One line each; `setup` is the timer that they would hold first."""
    fuse = "ends the box" if cloud.traits.fuse_ends_bill else "ends the processes, not the bill"
    found = ["keeper: this machine's daemon, ends the box at the timer", f"fuse: {fuse}"]
    if isinstance(cloud, KeepsTimers):
        fires_at = _hour(cloud.timer_fires_at(setup.ends_at))
        found.append(
            f"provider timer: {cloud.name} ends the box at {fires_at} if it is still being set up "
            "then, later once it trains; should the account not be allowed one, it is a guard less"
        )
    return tuple(found)


def money_guards(cloud: Provisioner) -> int:
    """How many can end the bill: keeper, fuse, the provider's own timer."""
    return 1 + int(cloud.traits.fuse_ends_bill) + int(isinstance(cloud, KeepsTimers))


def require_guards(cloud: Provisioner, offer: Offer, worst: str, settings: Settings) -> None:
    """A purchase that only the keeper can end needs an explicit yes."""
    able = money_guards(cloud)
    if able < settings.min_guards and not (able == 1 and settings.accept_one_guard):
        cure = (
            "If you accept that: `gpurun up ... --accept-one-guard`."
            if able == 1
            else "Lower min_guards in the settings, or take another --provider."
        )
        raise UsageError(
            f"{able} guard{'s' if able > 1 else ''} could end the bill of {cloud.name} offer "
            f"{offer.id}, min_guards is {settings.min_guards}: nothing was rented. {worst} {cure}"
        )


def worst_case(cloud: Provisioner, offer: Offer, setup: Deadlines) -> str:
    """What becomes of the bill if this machine is gone for good right after the purchase.

    In dollars beyond the timer: the provider's own timer is the last to act.
    """
    dies = "If this machine dies now"
    if not isinstance(cloud, KeepsTimers):
        bill = "" if cloud.traits.fuse_ends_bill else f" (${offer.usd_per_hour}/h)"
        return f"{dies}{bill}: {cloud.traits.if_lost}"
    fires_at = _hour(cloud.timer_fires_at(setup.ends_at))
    beyond = money.cost(offer.usd_per_hour, _longest_s(cloud, setup.ends_at))
    fuse = "; the fuse on the box 2 minutes after its timer, if it lives"
    return (
        f"{dies}: {cloud.name} ends it by {fires_at} (+${_cents(beyond)} at worst)"
        f"{fuse if cloud.traits.fuse_ends_bill else ''}."
    )


def credit(cloud: Provisioner, budget: Budget, offer: Offer, ceiling_usd: Decimal) -> Credit:
    """BudgetError where it would not even pay the setup and a minute of training."""
    if not isinstance(cloud, Prepaid):
        return Credit()
    try:
        usd = cloud.credit_usd()
    except ProviderError as error:
        return Credit(None, f"the credit is not known: {error}")
    if usd is None:
        return Credit(None, f"the credit is not known: this key of {cloud.name} may not see it")
    least_usd = money.least_usd(budget, offer.usd_per_hour, cloud.traits)
    least_usd += money.traffic_usd(offer)
    if usd < least_usd:
        raise BudgetError(
            f"the credit at {cloud.name} is ${usd:.2f}, but at ${offer.usd_per_hour}/h the setup, "
            "one minute of training, its grace, the end of the box and its traffic may cost "
            f"${_cents(least_usd)}: nothing was rented. Add credit, or take another --provider."
        )
    if usd < ceiling_usd:
        return Credit(
            usd,
            f"the credit of ${usd:.2f} is less than the ${_cents(ceiling_usd)} that this may "
            f"cost: {cloud.name} may end the box before its timer does",
        )
    return Credit(usd)


def key_remark(cloud: Provisioner, run: Deadlines) -> str:
    """When a key on the box may expire, which no provider tells; empty where there is none."""
    if not isinstance(cloud, KeyOnBox) or not cloud.box_key():
        return ""
    return (
        f"the key for the box must last until {_hour(after(run.fuse_at, KEY_SPARE_S))}, an hour "
        "after the fuse could need it; a run that is extended needs it longer"
    )


def beyond(recipe: Recipe, usd_per_hour: Decimal) -> list[str]:
    """What a recipe asks for after a failure, and after its end; each with its price."""
    keep, late = recipe.budget.keep_on_failure_minutes, recipe.budget.late_collect_minutes
    found = []
    if keep and recipe.train is not None:
        usd = _cents(money.cost(usd_per_hour, float(keep) * 60))
        found.append(
            f"if it fails, its box is kept for a look, {keep} minutes and ${usd} at most, never "
            "past its timer"
        )
    if late:
        usd = _cents(money.cost(usd_per_hour, float(late) * 60))
        found.append(
            f"if this machine sleeps past the end, collecting may then take {late} minutes, once "
            f"(+${usd})"
        )
    return found


def _longest_s(cloud: KeepsTimers, ends_at: datetime) -> float:
    """From a deadline until the provider has acted, whatever minute the deadline falls on."""
    begin = ends_at.replace(second=1, microsecond=0)
    waits = (cloud.timer_fires_at(at) - at for at in (after(begin, 60 * n) for n in range(60)))
    return math.ceil(max(waits).total_seconds() / 60) * 60 + SCHEDULER_LATE_S


def _hour(at: datetime) -> str:
    return f"{at:%b %d %H:%M} UTC"


def _cents(usd: Decimal) -> Decimal:
    return usd.quantize(money.CENT, ROUND_CEILING)
