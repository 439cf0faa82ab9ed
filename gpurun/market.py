"""What can be rented now, asked of every provider at once, and what a run would cost there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from gpurun import budget as money
from gpurun.atonce import ask_each
from gpurun.clock import Clock
from gpurun.errors import GpurunError
from gpurun.model import Budget, Need, Offer
from gpurun.provider import Provisioner
from gpurun.wiring import provisioner

if TYPE_CHECKING:
    from gpurun.settings import Settings

ANSWER_WITHIN_S = 4.8  # one that never answers costs five seconds at most


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked of one provider; `budget` is the recipe's there, None without a recipe."""

    need: Need
    budget: Budget | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What one provider has; `trouble` says why it has told nothing."""

    provider: str
    offers: tuple[Offer, ...] = ()
    cloud: Provisioner | None = None
    trouble: GpurunError | None = None


@dataclass(frozen=True, slots=True)
class Priced:
    """An offer; with a recipe, what its run is expected to cost there and what it may at most."""

    offer: Offer
    expected_usd: Decimal | None = None
    most_usd: Decimal | None = None


def ask(
    providers: Sequence[str],
    settings: "Settings",
    clock: Clock,
    wish_for: Callable[[str], Wish],
    within_s: float = ANSWER_WITHIN_S,
) -> list[Answer]:
    """An answer for each, in their order, after `within_s` at the latest."""

    def offers_of(name: str) -> Answer:
        cloud = provisioner(name, settings, clock)
        return Answer(name, tuple(cloud.offers(wish_for(name).need)), cloud)

    heard = ask_each(providers, offers_of, clock, within_s)
    return [each.answer or Answer(each.provider, trouble=each.trouble) for each in heard]


def priced(answer: Answer, budget: Budget | None) -> list[Priced]:
    if budget is None or answer.cloud is None:
        return [Priced(offer) for offer in answer.offers]
    found = []
    for offer in answer.offers:
        most = money.ceiling_of_plan(
            budget, offer.usd_per_hour, answer.cloud.traits, money.traffic_usd(offer)
        )
        found.append(Priced(offer, min(expected_usd(offer, budget), most), most))
    return found


def expected_usd(offer: Offer, budget: Budget) -> Decimal:
    """Setup and run as long as their timers let them, and what the network takes.

    A run that would cost more than its budget is ended before.
    """
    time_usd = money.cost(offer.usd_per_hour, budget.setup_s + budget.run_s)
    return time_usd + money.traffic_usd(offer)
