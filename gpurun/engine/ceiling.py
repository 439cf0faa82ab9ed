"""New money for a live run: `extend --max-usd` raises what it may cost at most, and says so."""

import json
from dataclasses import replace
from decimal import Decimal

from gpurun.engine.context import Context
from gpurun.errors import BudgetError, ProviderError, UsageError
from gpurun.provider import Prepaid
from gpurun.recipe import Recipe


def raised(ctx: Context, max_usd: Decimal | None) -> Context:
    """The run as it is with that ceiling, which nothing has written down yet.

    UsageError: it would not be higher.  BudgetError: the settings allow no run so much.
    """
    if max_usd is None:
        return ctx
    run, before = ctx.run.id, ctx.budget.max_usd
    if max_usd < before:
        held_usd = ctx.journal.ledger.committed_usd(run)
        raise UsageError(
            f"run {run} may cost ${before:.2f} already, and ${held_usd:.2f} of it are spent or "
            f"reserved: --max-usd {max_usd:.2f} is less, and it only raises; nothing was changed"
        )
    cap = ctx.settings.max_usd
    if cap is not None and max_usd > cap:
        raise BudgetError(
            f"--max-usd {max_usd:.2f} is more than max_usd ${cap:.2f} of the settings, which holds "
            f"for each run: nothing was changed. Raise it there, or `gpurun extend {run} ... "
            f"--max-usd {cap:.2f}`."
        )
    return _with(ctx, max_usd)


def as_raised(ctx: Context) -> Context:
    """With the ceiling that the run may have been given since this process began."""
    recipe = Recipe.from_dict(json.loads(ctx.journal.runs.get(ctx.run.id).recipe_json))
    return _with(ctx, recipe.budget.max_usd)


def refuse_beyond_wallet(ctx: Context, needs_usd: Decimal) -> None:
    """BudgetError where the provider's credit is known, and pays for less than is asked for."""
    if not isinstance(ctx.cloud, Prepaid):
        return
    try:
        credit_usd = ctx.cloud.credit_usd()
    except ProviderError:  # as when it was rented: what is not known forbids nothing
        return
    if credit_usd is not None and credit_usd < needs_usd:
        raise BudgetError(
            f"run {ctx.run.id} may need ${needs_usd:.2f} from now on, and the credit at "
            f"{ctx.cloud.name} is ${credit_usd:.2f}: it would end the box before its timer, and "
            "nothing was changed. Add credit, or extend it by less."
        )


def _with(ctx: Context, max_usd: Decimal) -> Context:
    budget = ctx.recipe.budget.model_copy(update={"max_usd": max_usd})
    return replace(ctx, recipe=ctx.recipe.model_copy(update={"budget": budget}))
