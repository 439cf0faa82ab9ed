"""What a recipe asks of a provider, and which of its offers the run could use."""

from gpurun.budget import FUSE_MARGIN_S
from gpurun.engine.context import budget_of
from gpurun.model import Need
from gpurun.recipe import Recipe


def need_of(recipe: Recipe) -> Need:
    """What is asked of a provider, for as long as the timers of this recipe let it run."""
    need, budget = recipe.need, budget_of(recipe)
    return Need(
        gpu=need.gpu if need.wants_gpu else None,
        gpu_count=need.gpu_count if need.wants_gpu else 0,
        disk_gb=need.disk_gb,
        image=need.image,
        rent_s=budget.setup_s + budget.run_s + budget.grace_s + FUSE_MARGIN_S,
    )
