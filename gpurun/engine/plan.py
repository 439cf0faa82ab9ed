"""What `up` would do, what it may cost at most, and what ends it; nothing is rented by it."""

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from gpurun import budget as money
from gpurun import bundle, push
from gpurun.bundle import Cargo
from gpurun.clock import Clock, after
from gpurun.engine.context import budget_of
from gpurun.engine.rent import need_of
from gpurun.errors import NoOffer, UsageError
from gpurun.model import Offer
from gpurun.phases import ORDER, PHASES, Facts
from gpurun.places import Places
from gpurun.provider import Provisioner
from gpurun.recipe import Recipe
from gpurun.settings import Settings
from gpurun.trust import require_room
from gpurun.wiring import provisioner

MOST_ENV_BYTES = 64 * 1024

# Phases that the engine performs itself, in words, for `--dry-run`.
IN_WORDS = {
    "rent": ("write intent, timer and reservation; the keeper acknowledges; create, once",),
    "boot": ("wait until a command really runs on the box; arm the fuse",),
    "accept": ("read the hardware in one round trip and compare it with the offer",),
    "arm": ("replace the setup timer by the run timer, on every guard",),
    "collect": ("fetch what `collect` matches, compare digests",),
    "destroy": ("end every process of the box, remove it, prove it gone",),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """One purchase as it would be made now."""

    recipe: Recipe
    recipe_dir: Path
    provider: str
    account_id: str
    offer: Offer
    others: tuple[Offer, ...]
    offer_id: str | None  # asked for by name
    ceiling_usd: Decimal
    setup_s: float
    run_s: float
    shortened_by_money: bool
    guards: tuple[str, ...]
    worst_case: str
    steps: tuple[tuple[str, tuple[str, ...]], ...]
    cargo: Cargo


def plan(
    recipe: Recipe,
    recipe_dir: Path,
    *,
    provider: str,
    offer_id: str | None,
    settings: Settings,
    clock: Clock,
) -> Plan:
    """Raises NoOffer, BudgetError, UsageError or ProviderError before anything is written."""
    require_room(Places(settings.state_dir))
    refuse_what_is_not_built(recipe)
    cloud = provisioner(provider, settings, clock)
    budget = budget_of(recipe)
    offers = [o for o in cloud.offers(need_of(recipe)) if offer_id in (None, o.id)]
    if not offers:
        raise NoOffer(_nothing_fits(recipe, provider, offer_id))
    offer = offers[0]
    money.check_price(offer, budget)
    money.check_possible(budget, offer.usd_per_hour, cloud.traits)
    _require_guards(cloud, offer, settings)
    cargo = bundle.cargo(recipe, recipe_dir)
    began = clock.now()
    armed = after(began, budget.setup_s)
    run = money.run_timer(
        armed,
        budget,
        offer.usd_per_hour,
        money.cost(offer.usd_per_hour, budget.setup_s),
        cloud.traits,
    )
    return Plan(
        recipe=recipe,
        recipe_dir=recipe_dir,
        provider=provider,
        account_id=cloud.account(),
        offer=offer,
        others=tuple(offers[1:3]),
        offer_id=offer_id,
        ceiling_usd=money.ceiling_usd(offer.usd_per_hour, began, run, cloud.traits),
        setup_s=budget.setup_s,
        run_s=(run.fires_at - armed).total_seconds(),
        shortened_by_money=run.shortened_by_money,
        guards=_guards(cloud),
        worst_case=_worst_case(cloud, offer),
        steps=_steps(recipe, cargo.digest, settings),
        cargo=cargo,
    )


def _nothing_fits(recipe: Recipe, provider: str, offer_id: str | None) -> str:
    if offer_id:
        return f"{provider} has no offer {offer_id} now. Run `gpurun offers --provider {provider}`."
    need = recipe.need
    wanted = f"{need.gpu_count}x {need.gpu}" if need.wants_gpu else "a machine without a GPU"
    return (
        f"{provider} offers nothing for {wanted} with {need.disk_gb} GB of disk. "
        "Change `need`, or try another --provider."
    )


def refuse_what_is_not_built(recipe: Recipe) -> None:
    """A promise that a recipe asks for and nobody would keep is refused, not ignored."""
    asked = {
        "requires": recipe.requires is not None,
        "budget.keep_on_failure_minutes": recipe.budget.keep_on_failure_minutes > 0,
        "budget.late_collect_minutes": recipe.budget.late_collect_minutes is not None,
    }
    if missing := [key for key, wanted in asked.items() if wanted]:
        raise UsageError(
            f"recipe {recipe.name} asks for {', '.join(missing)}, which this gpurun does not do "
            "yet: nothing was rented. Take it out of the recipe."
        )
    push.check(recipe)
    size = sum(len(name) + len(value) for name, value in recipe.env.items())
    if size > MOST_ENV_BYTES:
        raise UsageError(
            f"the env of recipe {recipe.name} has {size} characters, at most {MOST_ENV_BYTES} fit "
            "in a command: put what is large into a file of `ship`"
        )


def _require_guards(cloud: Provisioner, offer: Offer, settings: Settings) -> None:
    """A purchase that only the keeper can end needs an explicit yes."""
    able = 2 if cloud.traits.fuse_ends_bill else 1
    if able < settings.min_guards and not (able == 1 and settings.accept_one_guard):
        raise UsageError(
            f"{able} guard could end the bill of {cloud.name} offer {offer.id}, min_guards is "
            f"{settings.min_guards}: nothing was rented. {_worst_case(cloud, offer)} If you accept "
            "that: `gpurun up ... --accept-one-guard`."
        )


def _guards(cloud: Provisioner) -> tuple[str, ...]:
    fuse = "ends the box" if cloud.traits.fuse_ends_bill else "ends the processes, not the bill"
    return ("keeper: this machine's daemon, ends the box at the timer", f"fuse: {fuse}")


def _worst_case(cloud: Provisioner, offer: Offer) -> str:
    bill = "" if cloud.traits.fuse_ends_bill else f" (${offer.usd_per_hour}/h)"
    return f"If this machine dies now{bill}: {cloud.traits.if_lost}"


def _steps(
    recipe: Recipe, bundle_sha256: str, settings: Settings
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    facts = Facts(bundle_sha256, "LABEL", "RUN", settings.torch_cpu_index)
    return tuple(
        (
            phase,
            tuple(str(step) for step in PHASES[phase](recipe, facts))
            if phase in PHASES
            else IN_WORDS[phase],
        )
        for phase in ORDER
    )
