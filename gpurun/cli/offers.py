"""`offers`: what can be rented now, of every provider, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpurun.cli.talk import AsJson, print_json, say, tell
from gpurun.errors import NoOffer, ProviderError, UsageError

if TYPE_CHECKING:
    from gpurun.market import Answer, Priced, Wish
    from gpurun.settings import Settings

DISK_GB = 20


class By(StrEnum):
    """What `--sort` takes; the best first."""

    PRICE = "price"
    EXPECTED = "expected"
    RELIABILITY = "reliability"
    NETWORK = "network"
    VRAM = "vram"


def offers(
    gpu: Annotated[str | None, typer.Option(help="Model, as H100; left out: any, or none.")] = None,
    gpu_count: Annotated[int, typer.Option("--gpu-count", "-n", min=1, help="GPUs.")] = 1,
    disk_gb: Annotated[
        int, typer.Option("--disk", min=1, help="GB of disk, which are in the price.")
    ] = DISK_GB,
    provider: Annotated[str | None, typer.Option(help="Ask this one alone.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="What this recipe needs, and its price.")
    ] = None,
    max_price: Annotated[
        str | None, typer.Option(metavar="USD", help="Most per hour, all-in.")
    ] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Only what can be outbid.")] = False,
    sort: Annotated[By | None, typer.Option(help="The best of this first.")] = None,
    as_json: AsJson = False,
) -> None:
    """What can be rented now, side by side, all-in."""
    from gpurun import market
    from gpurun import settings as configuration
    from gpurun.clock import SystemClock
    from gpurun.model import Need
    from gpurun.wiring import members, names

    limit = _price(max_price)
    known = configuration.load()
    asked = names(known) if provider in (None, "any") else members(str(provider), known)
    plain = market.Wish(Need(gpu, gpu_count if gpu else 0, disk_gb, spot=spot))
    wish_for = _by_recipe(recipe, known, spot) if recipe else lambda _name: plain
    answers = market.ask(asked, known, SystemClock(), wish_for)
    found = [
        one
        for answer in answers
        for one in market.priced(answer, wish_for(answer.provider).budget)
        if one.offer.spot == wish_for(answer.provider).need.spot
    ]
    fitting = [one for one in found if limit is None or one.offer.usd_per_hour <= limit]
    if not fitting:
        raise _nothing(answers, found, limit, spot)
    fitting.sort(key=_order(sort or (By.EXPECTED if recipe else By.PRICE)))
    if as_json:
        print_json(_document(fitting, answers))
    else:
        _print(fitting, answers)


def _by_recipe(ref: str, settings: Settings, spot: bool) -> Callable[[str], Wish]:
    """What the recipe asks of each provider; a mistake in it is found before any is asked."""
    from dataclasses import replace

    from gpurun.engine.context import budget_of
    from gpurun.engine.needs import need_of
    from gpurun.market import Wish
    from gpurun.recipe import load
    from gpurun.wiring import kind

    load(ref, caps=settings.caps)

    def wish_for(name: str) -> Wish:
        recipe = load(ref, provider=kind(name), caps=settings.caps)
        return Wish(replace(need_of(recipe), spot=spot or recipe.need.spot), budget_of(recipe))

    return wish_for


def _nothing(
    answers: Sequence[Answer], found: Sequence[Priced], limit: Decimal | None, spot: bool
) -> Exception:
    """Why there is nothing to show, by every provider's own word."""
    if found:
        cheapest = min((one.offer for one in found), key=lambda offer: offer.usd_per_hour)
        return NoOffer(
            f"nothing that fits costs at most ${limit}/h: the cheapest is {cheapest.provider} "
            f"{cheapest.id} at ${cheapest.usd_per_hour}/h. Raise --max-price, or wait."
        )
    troubles = [answer.trouble for answer in answers if answer.trouble is not None]
    if not troubles or (spot and len(troubles) < len(answers)):
        what = "spot machines" if spot else "anything that fits"
        return NoOffer(f"no provider offers {what} now. Ask for less, or another --provider.")
    told = "; ".join(str(trouble) for trouble in troubles)
    wrong = next((trouble for trouble in troubles if isinstance(trouble, UsageError)), None)
    if wrong is not None:
        return wrong
    dead = any(isinstance(trouble, ProviderError) for trouble in troubles)
    return ProviderError(told) if dead else NoOffer(told)


def _order(sort: By) -> Callable[[Priced], Any]:
    def key(one: Priced) -> tuple[Decimal | float, Decimal, str]:
        offer, rate = one.offer, one.offer.usd_per_hour
        best: dict[By, Decimal | float] = {
            By.PRICE: rate,
            By.EXPECTED: rate if one.expected_usd is None else one.expected_usd,
            By.RELIABILITY: -(offer.reliability or 0),
            By.NETWORK: -(offer.down_mbps or 0),
            By.VRAM: -offer.vram_gb,
        }
        return best[sort], rate, offer.id

    return key


def _document(fitting: Sequence[Priced], answers: Sequence[Answer]) -> dict[str, Any]:
    from gpurun.show.offers import offer_document

    return {
        "offers": [offer_document(o.offer, o.most_usd, o.expected_usd) for o in fitting],
        "silent": [
            {"provider": answer.provider, "why": str(answer.trouble)}
            for answer in answers
            if answer.trouble is not None
        ],
    }


def _print(fitting: Sequence[Priced], answers: Sequence[Answer]) -> None:
    from gpurun.show import Look
    from gpurun.show.offers import offers_text

    for line in offers_text(fitting, Look.of()):
        tell(line)
    for answer in answers:
        if answer.trouble is not None:
            say(f"gpurun: nothing from {answer.provider}: {answer.trouble}")


def _price(text: str | None) -> Decimal | None:
    if text is None:
        return None
    try:
        price = Decimal(text)
    except InvalidOperation:
        price = Decimal("NaN")
    if not price.is_finite() or price < 0:
        raise UsageError(f"--max-price {text!r} is not an amount of USD per hour, as 2.50")
    return price
