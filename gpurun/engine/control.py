"""What the command line does to runs: begin, resume, kill, extend, pull."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

from gpurun import bundle, keeper, snapshot, spawn
from gpurun.blackbox import BlackBox
from gpurun.clock import Clock, SystemClock
from gpurun.engine import boxfiles, extending
from gpurun.engine.box import Box
from gpurun.engine.context import Context, open_context
from gpurun.engine.extending import Extension
from gpurun.engine.guarding import others
from gpurun.engine.live import FINISHED, live_box
from gpurun.engine.plan import Plan
from gpurun.errors import GpurunError, PhaseFailed, ProviderError, StillBilling, UsageError
from gpurun.glance import agreed_clock
from gpurun.keeper.charges import Charge, from_blackbox
from gpurun.keeper.client import hand_key, require_one_account
from gpurun.locks import holder
from gpurun.model import AttemptState, Ending, Run, RunState
from gpurun.places import Places
from gpurun.reaper import pursue
from gpurun.settings import Settings
from gpurun.signals import TOLD
from gpurun.store import Journal, StoreError
from gpurun.store.owner import random_id
from gpurun.timers import entry_of, evidence_of
from gpurun.trust import may_buy, require_trust
from gpurun.wiring import provisioner

AGAIN_S = 2.0


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


@dataclass(frozen=True, slots=True)
class Killing:
    """What `kill` has done so far."""

    said: str
    proven: bool  # gone already; else driver and keeper go on, and the journal tells


def kill(run_id: str, *, collect: bool, settings: Settings) -> Killing:
    """End a run.  Works without a journal, from the black box."""
    places, clock = Places(settings.state_dir), agreed_clock(settings.state_dir)
    try:
        try:
            said = _kill_by_journal(run_id, collect, places, settings, clock)
        except StoreError as error:
            if not places.free_reserve(str(error)):
                raise
            said = _kill_by_journal(run_id, collect, places, settings, clock)
        return Killing(said, False)
    except (StoreError, UsageError):  # unusable, or restored from before this run
        charges = [c for c in _blackbox_charges(places) if f"-{run_id}-" in c.label]
        if not charges:
            raise
        said = _kill_by_blackbox(charges, settings, clock)
        return Killing(
            f"{said}. Nothing was fetched: the journal says neither what nor where", True
        )


def kill_everything_in_blackbox(settings: Settings) -> str:
    """`kill --all` when the journal cannot be read."""
    charges = _blackbox_charges(Places(settings.state_dir))
    return _kill_by_blackbox(charges, settings, SystemClock())


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


def _kill_by_journal(
    run_id: str, collect: bool, places: Places, settings: Settings, clock: Clock
) -> str:
    ctx = open_context(run_id, places, settings, clock)
    run, attempts = ctx.run, ctx.journal.attempts.of_run(run_id)
    if run.state in FINISHED and not any(attempt.state.may_bill for attempt in attempts):
        return f"run {run_id} is already {run.state}: its box is gone, nothing to do"
    grace_s = ctx.budget.grace_s if collect else 0.0
    timers = ctx.journal.endings.end_run(run_id, Ending.KILL, "gpurun kill", grace_s)
    if not collect:
        timers = ctx.journal.endings.hurry(run_id)
    for timer in timers:
        with contextlib.suppress(OSError):
            entry = entry_of(ctx.journal.attempts.get(timer.label), timer, "deleting")
            ctx.blackbox.append(entry)
    if pid := holder(places.run_lock(run_id)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, TOLD)
            os.kill(pid, signal.SIGCONT)
    if not collect:
        _destroy_now(ctx)
    keeper.summon(places)
    warning = f"Warning: {trouble}. " if (trouble := ctx.journal.owner.trouble()) else ""
    return f"{warning}run {run_id} is being ended"


def _destroy_now(ctx: Context) -> None:
    """`--no-collect`: the first DELETE leaves from here; keeper and driver prove it."""
    for attempt in ctx.journal.attempts.of_run(ctx.run.id):
        if attempt.state in (AttemptState.MADE, AttemptState.SEEN, AttemptState.DELETING):
            with contextlib.suppress(ProviderError):
                pursue(evidence_of(attempt, ctx.clock), ctx.cloud, ctx.clock)


def _blackbox_charges(places: Places) -> list[Charge]:
    entries = BlackBox(places.blackbox, "", "").read()
    return [charge for entry in entries.values() if (charge := from_blackbox(entry))]


def _kill_by_blackbox(charges: list[Charge], settings: Settings, clock: Clock) -> str:
    """DELETE and prove each, from this process alone."""
    unproven = []
    for charge in charges:
        evidence, why = charge.evidence(clock), "not asked"
        give_up = clock.now() + timedelta(seconds=60)
        while clock.now() < give_up:
            try:
                cloud = provisioner(charge.provider, settings, clock)
                evidence, verdict = pursue(evidence, cloud, clock)
            except GpurunError as error:
                why = str(error)
            else:
                why = verdict.why
                if verdict.gone:
                    _note_gone(settings, charge)
                    break
            clock.sleep(AGAIN_S)
        else:
            unproven.append(f"{charge.label}: {why}")
    if unproven:
        raise StillBilling(f"may still bill: {'; '.join(unproven)}. Run `gpurun kill --all` again.")
    return f"by {Places(settings.state_dir).blackbox}: {len(charges)} boxes proven gone"


def _note_gone(settings: Settings, charge: Charge) -> None:
    box = BlackBox(Places(settings.state_dir).blackbox, "", "")
    entry = box.read().get(charge.label)
    if entry is not None:
        with contextlib.suppress(OSError):
            box.append(entry.with_state("gone"))
