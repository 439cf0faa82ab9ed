"""`offers` and `recipes`: what can be rented, and what can be run."""

from __future__ import annotations

import sys
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated

import typer

from gpurun.cli.talk import AsJson, print_json, say, tell
from gpurun.errors import GpurunError, NoOffer, UsageError

if TYPE_CHECKING:
    from gpurun.model import Offer
    from gpurun.settings import Settings

recipes = typer.Typer(
    help="The bundled recipes: list, show merged, JSON Schema.", rich_markup_mode=None
)

Priced = tuple["Offer", Decimal | None]


def offers(
    gpu: Annotated[str | None, typer.Option(help="Model, as H100; left out: no GPU.")] = None,
    gpu_count: Annotated[int, typer.Option("--gpu-count", "-n", min=1, help="GPUs.")] = 1,
    provider: Annotated[str | None, typer.Option(help="Ask this one alone.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="What this recipe needs, and its price.")
    ] = None,
    max_price: Annotated[
        str | None, typer.Option(metavar="USD", help="Most per hour, all-in.")
    ] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Only what can be outbid.")] = False,
    as_json: AsJson = False,
) -> None:
    """What can be rented now, side by side, all-in."""
    from gpurun import settings as configuration
    from gpurun.show.plan import offer_document
    from gpurun.wiring import members, names

    limit = _price(max_price)
    known, found, errors = configuration.load(), list[Priced](), list[GpurunError]()
    for name in members(provider, known) if provider else names(known):
        try:
            found += _offers(name, gpu, gpu_count, recipe, known)
        except GpurunError as error:
            errors.append(error)
            say(f"gpurun: {error}")
    fitting = [(o, usd) for o, usd in found if limit is None or o.usd_per_hour <= limit]
    if not fitting and errors:
        raise errors[0]
    if not fitting or spot:
        what = "spot machines" if spot else "anything that fits"
        raise NoOffer(f"no provider offers {what} now. Ask for less, or another --provider.")
    fitting.sort(key=lambda pair: pair[0].usd_per_hour)
    if as_json:
        print_json({"offers": [offer_document(offer, usd) for offer, usd in fitting]})
    else:
        _print_offers(fitting)


@recipes.callback(invoke_without_command=True)
def listed(context: typer.Context, as_json: AsJson = False) -> None:
    if context.invoked_subcommand is not None:
        return
    from gpurun.recipe import bundled
    from gpurun.show import Look, cut, table

    found = bundled()
    if as_json:
        documents = [{"name": n, "path": str(p), "description": d} for n, p, d in found]
        print_json({"recipes": documents})
        return
    for line in table(("RECIPE", "IS"), [(name, what) for name, _, what in found]):
        tell(cut(line, Look.of(sys.stdout)))


@recipes.command()
def show(
    name: Annotated[str, typer.Argument(help="Path or bundled name.")],
    provider: Annotated[str | None, typer.Option(help="As it holds for this provider.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print a recipe with everything merged, as it would be run."""
    from gpurun.recipe import load, show_yaml

    recipe = load(name, provider=provider)
    if as_json:
        print_json(recipe.to_dict())
    else:
        tell(show_yaml(recipe).rstrip())


@recipes.command()
def schema() -> None:
    """Print the JSON Schema of recipes, for editors."""
    from gpurun.recipe import schema as made

    print_json(made())


def _offers(
    name: str, gpu: str | None, gpu_count: int, ref: str | None, settings: Settings
) -> list[Priced]:
    from gpurun import budget
    from gpurun.clock import SystemClock
    from gpurun.engine.context import budget_of
    from gpurun.engine.rent import need_of
    from gpurun.model import Need
    from gpurun.recipe import load
    from gpurun.wiring import kind, provisioner

    cloud = provisioner(name, settings, SystemClock())
    if ref is None:
        need = Need(gpu=gpu, gpu_count=gpu_count if gpu else 0, disk_gb=1)
        return [(offer, None) for offer in cloud.offers(need)]
    recipe = load(ref, provider=kind(name), caps=settings.caps)
    limits = budget_of(recipe)
    return [
        (offer, budget.ceiling_of_plan(limits, offer.usd_per_hour, cloud.traits))
        for offer in cloud.offers(need_of(recipe))
    ]


def _print_offers(fitting: list[Priced]) -> None:
    from gpurun.show import money, table

    head = ("PROVIDER", "OFFER", "GPU", "DISK", "$/H", "RUN AT MOST", "PLACE")
    rows = [
        (
            offer.provider,
            offer.id,
            f"{offer.gpu_count}x {offer.gpu}" if offer.gpu else "-",
            f"{offer.disk_gb} GB",
            format(offer.usd_per_hour, "f"),
            money(usd),
            offer.place or "-",
        )
        for offer, usd in fitting
    ]
    for line in table(head, rows, right=(3, 4, 5)):
        tell(line)


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
