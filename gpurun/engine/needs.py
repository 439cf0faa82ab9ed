"""What a recipe asks of a provider, and which of its offers the run could use."""

import math
from collections.abc import Iterable

from gpurun.budget import FUSE_MARGIN_S
from gpurun.engine.context import budget_of
from gpurun.model import Need, Offer
from gpurun.recipe import Recipe


def need_of(recipe: Recipe) -> Need:
    """What is asked of a provider, for as long as the timers of this recipe let it run."""
    need, budget = recipe.need, budget_of(recipe)
    return Need(
        gpu=need.gpu if need.wants_gpu else None,
        gpu_count=need.gpu_count if need.wants_gpu else 0,
        disk_gb=need.disk_gb,
        image=need.image,
        spot=need.spot,
        rent_s=budget.setup_s + budget.run_s + budget.grace_s + FUSE_MARGIN_S,
    )


def fitting(offers: Iterable[Offer], recipe: Recipe, offer_id: str | None = None) -> list[Offer]:
    """Those that are not known to be refused once they are bought; one asked for by name is taken
    as it is, and no other.
    """
    if offer_id is not None:
        return [offer for offer in offers if offer.id == offer_id]
    return [offer for offer in offers if _fits(offer, recipe)]


def _fits(offer: Offer, recipe: Recipe) -> bool:
    """What a provider does not tell is seen when the box is accepted."""
    need = recipe.need
    return not (
        (need.nvlink and offer.nvlink is False)
        or (need.vram_gb and 0 < offer.vram_gb < need.vram_gb)
        or (need.download_mbit_s and (offer.down_mbps or math.inf) < need.download_mbit_s)
    )
