"""What `up` would do, what it may cost at most, and what ends it; nothing is rented by it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

from gpurun import budget as money
from gpurun import bundle, market, push
from gpurun.bundle import Cargo
from gpurun.clock import Clock, after
from gpurun.engine import ladder, stakes
from gpurun.engine.context import budget_of
from gpurun.engine.limits import Tightest, tightest
from gpurun.engine.needs import fitting, need_of
from gpurun.errors import (
    BudgetError,
    GpurunError,
    NoOffer,
    NotProven,
    ProviderError,
    UsageError,
)
from gpurun.glance.lasttime import LastTime, last_time
from gpurun.keeper.client import key_remark
from gpurun.market import Wish
from gpurun.model import Offer
from gpurun.phases import ORDER, PHASES, Facts
from gpurun.places import Places
from gpurun.provider import Provisioner
from gpurun.recipe import Recipe
from gpurun.settings import Settings
from gpurun.trust import require_room

MOST_ENV_BYTES = 64 * 1024
ASK_WITHIN_S = 20.0

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
class Elsewhere:
    """A provider that was asked, or would have been, and why nothing is rented there."""

    provider: str
    why: str


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
    expected_usd: Decimal
    ceiling_usd: Decimal
    credit_usd: Decimal | None
    setup_s: float
    run_s: float
    shortened_by_money: bool
    guards: tuple[str, ...]
    money_guards: int  # how many of them can end the bill
    worst_case: str
    remarks: tuple[str, ...]
    steps: tuple[tuple[str, tuple[str, ...]], ...]
    cargo: Cargo
    tightest: Tightest
    elsewhere: tuple[Elsewhere, ...] = ()
    last_time: LastTime | None = None


def plan(
    recipe: Recipe,
    recipe_dir: Path,
    *,
    provider: str,
    offer_id: str | None,
    settings: Settings,
    clock: Clock,
    skip_ladder: bool = False,
) -> Plan:
    """NoOffer, BudgetError, NotProven, UsageError or ProviderError, before anything is written."""
    return plan_among(
        {provider: recipe},
        recipe_dir,
        offer_id=offer_id,
        settings=settings,
        clock=clock,
        skip_ladder=skip_ladder,
    )


def plan_among(
    recipes: Mapping[str, Recipe],
    recipe_dir: Path,
    *,
    offer_id: str | None,
    settings: Settings,
    clock: Clock,
    within_s: float = ASK_WITHIN_S,
    skip_ladder: bool = False,
) -> Plan:
    """Where the run is expected to cost least, of these providers, each with its own recipe.

    All are asked at once.  One that does not answer, or where the price, the guards or the credit
    forbid it, is passed over; if that is all of them, the error says why for each.
    """
    require_room(Places(settings.state_dir))
    for recipe in recipes.values():
        refuse_what_cannot_be(recipe)
    wishes = {name: Wish(need_of(one), budget_of(one)) for name, one in recipes.items()}
    refused: dict[str, GpurunError] = {}
    found: list[Candidate] = []
    for answer in market.ask(list(recipes), settings, clock, wishes.__getitem__, within_s):
        offers = tuple(fitting(answer.offers, recipes[answer.provider], offer_id))
        if answer.cloud is None:
            assert answer.trouble is not None
            refused[answer.provider] = answer.trouble
        elif not offers:
            recipe = recipes[answer.provider]
            refused[answer.provider] = NoOffer(_nothing_fits(recipe, answer.provider, offer_id))
        else:
            found.append(Candidate(answer.provider, answer.cloud, offers))
    if offer_id and len(found) > 1:
        names = " and ".join(one.provider for one in found)
        raise UsageError(f"{names} have an offer {offer_id}: say which with --provider")
    chosen: Plan | None = None
    dearer = []
    for one in sorted(found, key=lambda one: one.expected_usd(recipes[one.provider])):
        recipe = recipes[one.provider]
        if chosen is not None:
            dearer.append(Elsewhere(one.provider, one.is_dearer(recipe)))
            continue
        try:
            chosen = _plan_at(one, recipe, recipe_dir, offer_id, settings, clock, skip_ladder)
        except GpurunError as error:
            refused[one.provider] = error
    if chosen is None:
        raise _none(list(refused.values()))
    passed_over = (Elsewhere(name, str(error)) for name, error in refused.items())
    return replace(chosen, elsewhere=(*dearer, *passed_over))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A provider that has something to rent: the cheapest first, never none."""

    provider: str
    cloud: Provisioner
    offers: tuple[Offer, ...]

    def expected_usd(self, recipe: Recipe) -> Decimal:
        return market.expected_usd(self.offers[0], budget_of(recipe))

    def is_dearer(self, recipe: Recipe) -> str:
        offer = self.offers[0]
        what = f"{offer.gpu_count}x {offer.gpu}" if offer.gpu else "no GPU"
        return (
            f"dearer: {what} at ${offer.usd_per_hour}/h, ${self.expected_usd(recipe):.2f} expected "
            f"(offer {offer.id})"
        )


def _plan_at(
    candidate: Candidate,
    recipe: Recipe,
    recipe_dir: Path,
    offer_id: str | None,
    settings: Settings,
    clock: Clock,
    skip_ladder: bool,
) -> Plan:
    cloud, offer, budget = candidate.cloud, candidate.offers[0], budget_of(recipe)
    money.check_price(offer, budget)
    began, rate, beside_usd = clock.now(), offer.usd_per_hour, money.traffic_usd(offer)
    money.check_possible(budget, rate, cloud.traits, beside_usd)
    setup = money.setup_timer(began, budget, rate, cloud.traits, beside_usd)
    armed = after(began, budget.setup_s)
    spent_usd = money.cost(rate, budget.setup_s) + beside_usd
    run = money.run_timer(armed, budget, rate, spent_usd, cloud.traits)
    ceiling_usd = money.ceiling_usd(rate, began, run, cloud.traits) + beside_usd
    tight = tightest(settings, budget, cloud.name, rate, ceiling_usd, clock)
    # The credit first: what it is becomes part of the worst case.
    credit = stakes.credit(cloud, budget, offer, ceiling_usd)
    worst = stakes.worst_case(cloud, offer, setup)
    stakes.require_guards(cloud, offer, worst, settings)
    cargo = bundle.cargo(recipe, recipe_dir)
    remarks = (
        ladder.remark(recipe, offer, cargo.digest, settings, clock, skip_ladder),
        credit.remark,
        stakes.key_remark(cloud, run),
        key_remark(candidate.provider, settings),
        _idle_gpus(recipe, offer),
        *stakes.beyond(recipe, rate),
    )
    return Plan(
        recipe=recipe,
        recipe_dir=recipe_dir,
        provider=candidate.provider,
        account_id=cloud.account(),
        offer=offer,
        others=candidate.offers[1:3],
        offer_id=offer_id,
        expected_usd=min(candidate.expected_usd(recipe), ceiling_usd),
        ceiling_usd=ceiling_usd,
        credit_usd=credit.usd,
        setup_s=budget.setup_s,
        run_s=(run.fires_at - armed).total_seconds(),
        shortened_by_money=run.shortened_by_money,
        guards=stakes.guards(cloud, setup),
        money_guards=stakes.money_guards(cloud),
        worst_case=worst,
        remarks=tuple(filter(None, remarks)),
        steps=_steps(recipe, cargo.digest, settings),
        cargo=cargo,
        tightest=tight,
        last_time=last_time(settings.state_dir, recipe.name, offer.gpu, offer.gpu_count, began),
    )


def _none(errors: Sequence[GpurunError]) -> GpurunError:
    """One error for all: what the user can change comes before what nobody can."""
    if len(errors) == 1:
        return errors[0]
    kinds = (NotProven, BudgetError, UsageError, ProviderError, NoOffer)
    worst = next(error for kind in kinds for error in errors if isinstance(error, kind))
    return type(worst)("\n".join(dict.fromkeys(str(error) for error in errors)))


def _nothing_fits(recipe: Recipe, provider: str, offer_id: str | None) -> str:
    if offer_id:
        return f"{provider} has no offer {offer_id} now. Run `gpurun offers --provider {provider}`."
    need = recipe.need
    wanted = f"{need.gpu_count}x {need.gpu}" if need.wants_gpu else "a machine without a GPU"
    return (
        f"{provider} offers nothing for {wanted} with {need.disk_gb} GB of disk. "
        "Change `need`, or try another --provider."
    )


def _idle_gpus(recipe: Recipe, offer: Offer) -> str:
    if recipe.setup.device != "cpu" or offer.gpu is None:
        return ""
    return (
        f"setup.device is cpu: {offer.gpu_count}x {offer.gpu} are paid for, and whether torch sees "
        "them is not looked at"
    )


def refuse_what_cannot_be(recipe: Recipe) -> None:
    """Before any provider is asked."""
    push.check(recipe)
    size = sum(len(name) + len(value) for name, value in recipe.env.items())
    if size > MOST_ENV_BYTES:
        raise UsageError(
            f"the env of recipe {recipe.name} has {size} characters, at most {MOST_ENV_BYTES} fit "
            "in a command: put what is large into a file of `ship`"
        )


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
