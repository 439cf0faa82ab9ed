"""What the command line does to runs: begin, resume, extend, pull."""

import json
import shutil
import subprocess
from decimal import Decimal
from pathlib import Path

from gpurun import bundle, keeper, snapshot, spawn
from gpurun.engine import boxfiles, extending
from gpurun.engine.box import Box
from gpurun.engine.extending import Extension
from gpurun.engine.guarding import others
from gpurun.engine.live import FINISHED, live_box
from gpurun.engine.plan import Plan
from gpurun.errors import PhaseFailed, UsageError
from gpurun.glance import agreed_clock
from gpurun.keeper.client import hand_key, require_one_account
from gpurun.locks import holder
from gpurun.model import Run, RunState
from gpurun.places import Places
from gpurun.settings import Settings
from gpurun.store import Journal
from gpurun.store.owner import random_id
from gpurun.trust import may_buy, require_trust


def begin(plan: Plan, settings: Settings) -> str:
    """Write the run and start its driver; returns the run's id.  Nothing is rented by this call."""
    places, clock = Places(settings.state_dir).ensure(), agreed_clock(settings.state_dir)
    journal = may_buy(places, clock)
    require_one_account(places, journal, plan.provider, plan.account_id, settings)
    run_id = random_id(8)
    _require_writable(settings.runs_dir / run_id)
    snapshot.keep(plan.cargo, places.cargo(run_id))
    options = {
        "offer_id": plan.offer_id,
        "account_id": plan.account_id,
        "usd_per_hour": str(plan.offer.usd_per_hour),
        "git": _git_state(plan.recipe_dir),
        "stays": plan.recipe.train is None,
        "accept_one_guard": settings.accept_one_guard,
    }
    journal.runs.add(
        Run(
            id=run_id,
            recipe_name=plan.recipe.name,
            recipe_json=json.dumps(plan.recipe.to_dict()),
            recipe_dir=str(plan.recipe_dir.absolute()),
            provider=plan.provider,
            runs_dir=str(settings.runs_dir.absolute()),
            options_json=json.dumps(options),
            state=RunState.ACTIVE,
            phase="rent",
            ending=None,
            reason="",
            exit_code=None,
            error="",
            driver_epoch=0,
            bundle_sha256=plan.cargo.digest,
            created_at=clock.now(),
            finished_at=None,
            collected_at=None,
        )
    )
    for remark in plan.remarks:
        journal.runs.event(run_id, "note", remark)
    hand_key(places, plan.provider, settings)
    keeper.summon(places)  # it also ends what this driver may leave behind
    spawn.detached("gpurun.engine", run_id, log=places.run_dir(run_id) / "driver.log")
    return run_id


def resume(run_id: str, settings: Settings) -> None:
    """Start a driver for a run that has lost its own; it goes on from the journal."""
    places = Places(settings.state_dir)
    journal = Journal(places.database, agreed_clock(places.root))
    run = journal.runs.get(run_id)
    journal.owner.require_this_machine(f"run {run_id} is not resumed")
    if run.state in FINISHED:
        raise UsageError(
            f"run {run_id} is {run.state} and its box is gone. To run it again: "
            f"`gpurun up {run.recipe_name}`"
        )
    keeper.start(places)
    if holder(places.run_lock(run_id)) is None:
        spawn.detached(
            "gpurun.engine", run_id, "--takeover", log=places.run_dir(run_id) / "driver.log"
        )


def extension(
    run_id: str, seconds: float, settings: Settings, max_usd: Decimal | None = None
) -> Extension:
    """What `extend` would come to; refused where it would be, and nothing is changed."""
    ctx, attempt = live_box(run_id, settings)
    require_trust(ctx.journal, "nothing was changed")
    return extending.extension(ctx, attempt, seconds, max_usd)


def extend(
    run_id: str, seconds: float, settings: Settings, max_usd: Decimal | None = None
) -> Extension:
    """Move the timer of a live run later, on every guard, if its money pays for it."""
    ctx, attempt = live_box(run_id, settings)
    require_trust(ctx.journal, "nothing was changed")
    box = Box(ctx, attempt, lambda _line: None)
    return extending.extend(ctx, attempt, others(ctx, attempt, box.line), seconds, max_usd)


def pull(run_id: str, path: str | None, settings: Settings) -> list[Path]:
    """Fetch what the recipe collects, or one path, from a live box."""
    ctx, attempt = live_box(run_id, settings)
    box = Box(ctx, attempt, lambda _line: None)
    if path and (path.startswith("/") or ".." in Path(path).parts):
        raise UsageError(f"{path} lies outside of the box's root; give a path inside of it")
    globs = [path] if path else ctx.recipe.collect
    files, failed = boxfiles.fetch(box.shell, globs, ctx.artifacts_dir)
    if failed:
        raise PhaseFailed("; ".join(failed))
    if not files:
        raise UsageError(f"nothing on the box of run {run_id} matches {', '.join(globs)}")
    return [ctx.artifacts_dir / file.path for file in files]


def _require_writable(folder: Path) -> None:
    """Where the artifacts will land: proven before anything is rented."""
    try:
        folder.mkdir(parents=True)
        if not any(other != folder for other in folder.parent.iterdir()):  # made by us just now
            (folder.parent / ".gitignore").write_text(bundle.ARTIFACTS_IGNORED)
        (folder / ".probe").touch()
        (folder / ".probe").unlink()
    except OSError as error:
        raise UsageError(
            f"artifacts cannot be written to {folder} ({error.strerror}): nothing was rented. "
            "Run gpurun elsewhere, or set GPURUN_RUNS_DIR."
        ) from error


def _git_state(folder: Path) -> dict[str, object]:
    """The commit that the recipe lies in, for the report; nothing outside of a repository."""

    def git(*words: str) -> str | None:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else None

    if shutil.which("git") is None or (commit := git("rev-parse", "HEAD")) is None:
        return {}
    return {"commit": commit, "dirty": bool(git("status", "--porcelain"))}
