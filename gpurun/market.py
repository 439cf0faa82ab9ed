"""What can be rented now, asked of every provider at once.

One that does not answer in time costs that time and hides nobody; why it is missing is told.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from gpurun import budget as money
from gpurun.clock import Clock
from gpurun.errors import GpurunError, ProviderUnreachable
from gpurun.model import Budget, Need, Offer
from gpurun.provider import Provisioner
from gpurun.wiring import provisioner

if TYPE_CHECKING:
    from gpurun.settings import Settings

ANSWER_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked of one provider; `budget` is the recipe's there, None without a recipe."""

    need: Need
    budget: Budget | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What one provider has; `trouble` says why it has told nothing, `bug` that it is ours."""

    provider: str
    offers: tuple[Offer, ...] = ()
    cloud: Provisioner | None = None
    trouble: GpurunError | None = None
    bug: Exception | None = None


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
    came: queue.SimpleQueue[Answer] = queue.SimpleQueue()

    def work(name: str) -> None:
        came.put(_ask(name, settings, clock, wish_for))

    for name in providers:
        threading.Thread(target=work, args=(name,), daemon=True, name=f"offers of {name}").start()
    ends_s = clock.boot_s() + within_s
    found: dict[str, Answer] = {}
    while len(found) < len(set(providers)):
        try:
            answer = came.get(timeout=max(0.0, ends_s - clock.boot_s()))
        except queue.Empty:
            break
        if answer.bug is not None:
            raise answer.bug
        found[answer.provider] = answer
    return [found.get(name) or _late(name, within_s) for name in providers]


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


def _ask(name: str, settings: "Settings", clock: Clock, wish_for: Callable[[str], Wish]) -> Answer:
    try:
        cloud = provisioner(name, settings, clock)
        return Answer(name, tuple(cloud.offers(wish_for(name).need)), cloud)
    except GpurunError as error:
        return Answer(name, trouble=error)
    except Exception as error:  # carried to whoever asked
        return Answer(name, bug=error)


def _late(name: str, within_s: float) -> Answer:
    return Answer(name, trouble=ProviderUnreachable(f"{name} did not answer in {within_s:.0f} s"))
