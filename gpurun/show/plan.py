"""The plan: what `up` would rent, what it may cost at most, and what ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpurun.glance import lasttime
from gpurun.show.offers import offer_document
from gpurun.show.risk import for_plan
from gpurun.show.text import duration, money, size

if TYPE_CHECKING:
    from gpurun.engine import Plan
    from gpurun.engine.plan import Elsewhere
    from gpurun.model import Offer


def plan_text(plan: Plan, *, steps: bool) -> str:
    budget = plan.recipe.budget
    lines = [
        f"{plan.recipe.name} on {offer_words(plan.offer)}",
        f"  expected  {money(plan.expected_usd)}",
        f"  at most   {money(plan.ceiling_usd)} of budget.max_usd {money(budget.max_usd)}",
        f"  cap       {_tightest(plan)}",
        f"  setup     up to {duration(plan.setup_s)}, then training up to {duration(plan.run_s)}"
        + (" (shortened: the money ends there)" if plan.shortened_by_money else ""),
        *(f"  last time {text}" for text in _last_time(plan)),
        f"  ships     {len(plan.cargo.files)} files, {size(plan.cargo.total_bytes)}",
        *(() if plan.credit_usd is None else (f"  credit    {money(plan.credit_usd)}",)),
        *(f"  guard     {guard}" for guard in plan.guards),
        f"  if lost   {plan.worst_case}",
        *(f"  results   {text}" for text in for_plan(plan.provider, plan.recipe.collect_to)),
        *(f"  note      {remark}" for remark in plan.remarks),
        *(f"  or        {offer_words(other)}" for other in plan.others),
        *(f"  elsewhere {_named(each)}" for each in plan.elsewhere),
    ]
    if steps:
        for phase, texts in plan.steps:
            lines.append(f"\n{phase}")
            lines += [f"  - {' '.join(text.split())}" for text in texts]
    return "\n".join(lines)


def plan_document(plan: Plan) -> dict[str, Any]:
    """What `up --dry-run --json` prints."""
    return {
        "recipe": plan.recipe.name,
        "provider": plan.provider,
        "offer": offer_document(plan.offer, None, plan.expected_usd),
        "others": [offer_document(other, None) for other in plan.others],
        "ceiling_usd": f"{plan.ceiling_usd:.2f}",
        "budget_usd": f"{plan.recipe.budget.max_usd:.2f}",
        "tightest_cap": {
            "name": plan.tightest.name,
            "usd": f"{plan.tightest.usd:.2f}",
            "left_usd": f"{plan.tightest.left_usd:.2f}",
        },
        "credit_usd": None if plan.credit_usd is None else f"{plan.credit_usd:.2f}",
        "setup_s": plan.setup_s,
        "run_s": plan.run_s,
        "shortened_by_money": plan.shortened_by_money,
        "guards": list(plan.guards),
        "money_guards": plan.money_guards,
        "worst_case": plan.worst_case,
        "last_time": lasttime.document(plan.last_time) if plan.last_time else None,
        "remarks": list(plan.remarks),
        "elsewhere": [{"provider": each.provider, "why": each.why} for each in plan.elsewhere],
        "ship_files": len(plan.cargo.files),
        "ship_bytes": plan.cargo.total_bytes,
        "bundle_sha256": plan.cargo.digest,
        "steps": [{"phase": phase, "steps": list(texts)} for phase, texts in plan.steps],
    }


def _last_time(plan: Plan) -> list[str]:
    """What the recipe took then, and what is too short for that this time."""
    last, offer = plan.last_time, plan.offer
    if last is None:
        return []
    train = plan.recipe.to_dict()["train"]
    rate = offer.usd_per_hour
    short = lasttime.shortfall(last, offer.gpu, offer.gpu_count, train, plan.run_s, rate)
    return [lasttime.words(last), *filter(None, [short])]


def offer_words(offer: Offer) -> str:
    what = f"{offer.gpu_count}x {offer.gpu}" if offer.gpu else "no GPU"
    place = f", {offer.place}" if offer.place else ""
    return (
        f"{offer.provider} {offer.id}: {what}, {offer.disk_gb} GB{place}, ${offer.usd_per_hour}/h"
    )


def _tightest(plan: Plan) -> str:
    cap = plan.tightest
    if cap.name == "budget.max_usd":
        return f"{cap.name} {money(cap.usd)} is the tightest"
    return f"{cap.name} {money(cap.usd)} is the tightest: {money(cap.left_usd)} of it are left"


def _named(each: Elsewhere) -> str:
    """Most errors begin with whose they are."""
    return each.why if each.why.startswith(each.provider) else f"{each.provider}: {each.why}"
