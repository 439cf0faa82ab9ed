"""One recipe after another on a live box: what `up --on RUN` does.

Only a box whose own recipe has no `train:` stays when a training ends; its timer and its budget
are those of its run, whatever the later recipes say.
"""

import json
import os
from contextlib import suppress
from pathlib import Path

from gpurun import bundle, keeper, snapshot, spawn
from gpurun.clock import Deadline
from gpurun.engine.live import live_box
from gpurun.engine.plan import refuse_what_cannot_be
from gpurun.errors import UsageError
from gpurun.locks import holder
from gpurun.recipe import Recipe
from gpurun.settings import Settings
from gpurun.signals import TOLD

DRIVER_LEAVES_WITHIN_S = 30.0


def again(run_id: str, recipe: Recipe, recipe_dir: Path, settings: Settings) -> int:
    """Begin this recipe on the box of that run; returns the task's number, from 1."""
    ctx, _ = live_box(run_id, settings)
    if not ctx.stays:
        raise UsageError(
            f"the box of run {run_id} is ended when its training ends: only one whose recipe has "
            "no `train:` takes others"
        )
    if recipe.train is None:
        raise UsageError(f"recipe {recipe.name} has no `train:`: there is nothing to run")
    if ctx.run.phase != "train" or (ctx.task and not ctx.task_result()):
        raise UsageError(
            f"run {run_id} is at work (`gpurun status {run_id}`); try again when that is done"
        )
    refuse_what_cannot_be(recipe)
    cargo = bundle.cargo(recipe, recipe_dir)
    number = ctx.task + 1
    kept = recipe.model_copy(update={"budget": ctx.recipe.budget})
    ctx.journal.runs.again(
        run_id,
        before=ctx.run.options_json,
        recipe_json=json.dumps(kept.to_dict()),
        recipe_dir=str(recipe_dir.absolute()),
        bundle_sha256=cargo.digest,
        options_json=json.dumps(ctx.options | {"task": number, "task_recipe": recipe.name}),
    )
    snapshot.keep(cargo, ctx.places.cargo(run_id))
    log = ctx.places.run_dir(run_id) / "train.log"
    with suppress(FileNotFoundError):
        log.rename(log.with_name(f"train-{ctx.task}.log"))
    _change_drivers(ctx.places.run_lock(run_id))
    keeper.summon(ctx.places)  # it starts a driver, should ours not come to it
    spawn.detached(
        "gpurun.engine", run_id, "--takeover", log=ctx.places.run_dir(run_id) / "driver.log"
    )
    return number


def _change_drivers(lock: Path) -> None:
    """The driver that holds the box open leaves; the next one finds the new recipe."""
    deadline = Deadline(DRIVER_LEAVES_WITHIN_S)
    if pid := holder(lock):
        with suppress(ProcessLookupError):
            os.kill(pid, TOLD)
    while holder(lock) is not None and not deadline.passed():
        pass
