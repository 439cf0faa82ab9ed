"""KILL: every end of a run, seen from its driver.  A keeper can do all of it but the collecting."""

import contextlib
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from gpurun.engine import boxfiles, detached
from gpurun.engine.box import Box
from gpurun.engine.context import Context
from gpurun.engine.rent import resolve
from gpurun.engine.watch import Progress, look_once
from gpurun.errors import GpurunError, ProviderError
from gpurun.guards import disarm_all
from gpurun.model import Attempt, AttemptState
from gpurun.outcome import conclude
from gpurun.proof import Evidence, Verdict
from gpurun.reaper import pursue
from gpurun.timers import evidence_of

LOUD_AFTER_S = 60.0
RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
STOP_SHARE = 0.5  # of the grace, for the training's own checkpoint; the rest is for collecting


def end_all(ctx: Context, log: Callable[[str], None]) -> None:
    """Bring every attempt of a run that is ending to its proven end."""
    for attempt in ctx.journal.attempts.of_run(ctx.run.id):
        end_one(ctx, attempt, log)
    conclude(ctx.journal, ctx.run.id)


def end_one(ctx: Context, attempt: Attempt, log: Callable[[str], None]) -> None:
    """One attempt: stop the training, collect, destroy, prove."""
    if attempt.state is AttemptState.INTENT:
        ctx.journal.attempts.refused(attempt.label, "ended before the request left")
        return
    if attempt.state in (AttemptState.SENDING, AttemptState.UNCLEAR):
        found = resolve(ctx, attempt)
        if found is None:
            return  # a ghost: the keeper watches for it
        attempt = found
    if not attempt.state.may_bill or attempt.state is AttemptState.GHOST:
        return
    if attempt.state is AttemptState.SEEN:
        ctx.journal.runs.show_phase(ctx.run.id, "collect")
        _collect_what_can_be(ctx, attempt, log)
        ctx.journal.ledger.book(attempt.label, "collect")
    destroy(ctx, attempt, log)


def destroy(ctx: Context, attempt: Attempt, log: Callable[[str], None]) -> None:
    """DELETE and PROOF, until proven; nothing but the proof ends this."""
    ctx.journal.runs.show_phase(ctx.run.id, "destroy")
    ctx.journal.attempts.deleting(attempt.label)
    began_s, rounds = ctx.clock.boot_s(), 0
    evidence = evidence_of(attempt, ctx.clock)
    while ctx.journal.attempts.get(attempt.label).state is not AttemptState.GONE:
        try:
            evidence, verdict = pursue(evidence, ctx.cloud, ctx.clock)
        except ProviderError as error:
            verdict = Verdict(False, str(error))
        ctx.journal.attempts.evidence(
            attempt.label, evidence.to_json(), acked=evidence.acked_s is not None
        )
        if verdict.gone:
            ctx.journal.attempts.gone(attempt.label, evidence.to_json())
            break
        if ctx.clock.boot_s() - began_s > LOUD_AFTER_S:
            log(f"STILL BILLING: {attempt.label}: {verdict.why}")
            conclude(ctx.journal, ctx.run.id, unproven=verdict.why)
        ctx.clock.sleep(_next_look_s(ctx, evidence, rounds))
        rounds += 1
    ctx.journal.ledger.book(attempt.label, "destroy")
    timer = ctx.journal.timers.of(attempt.label)
    if timer is not None:
        with contextlib.suppress(OSError):  # a full disk never keeps a dead box alive
            ctx.trace(ctx.journal.attempts.get(attempt.label), timer, "gone")
    if trouble := disarm_all(ctx.cloud, attempt, ctx.journal, ctx.clock):
        log(f"the fuse of {attempt.label} could not be disarmed: {trouble}")
    log(f"destroyed {attempt.label}: proven gone")


def _next_look_s(ctx: Context, evidence: Evidence, rounds: int) -> float:
    """After an acknowledged DELETE the second list is due once the gap has passed."""
    if evidence.acked_s is not None and len(evidence.listings) == 1:
        return ctx.cloud.traits.proof_gap_s
    return RETRY_S[min(rounds, len(RETRY_S) - 1)]


def _collect_what_can_be(ctx: Context, attempt: Attempt, log: Callable[[str], None]) -> None:
    """SIGTERM, wait for the checkpoint, fetch: all of it before `ends_at`, none of it required."""
    timer = ctx.journal.timers.of(attempt.label)
    if timer is None or timer.ends_at <= ctx.clock.now() or ctx.run.collected_at is not None:
        return
    try:
        box = Box(ctx, attempt, log)
        _stop_training(ctx, box, timer.ends_at)
        collect(ctx, box, log)
    except (GpurunError, OSError) as error:
        log(f"not everything could be collected: {error}")


def _stop_training(ctx: Context, box: Box, ends_at: datetime) -> None:
    """SIGTERM; wait while it saves its checkpoint, for a share of what is left."""
    train_log = ctx.places.run_dir(ctx.run.id) / "train.log"
    sight = look_once(ctx, box.shell, train_log, Progress(ctx.clock.now()))
    if not sight.started or not sight.alive:
        return
    box.shell.run(detached.terminate_text("train"), timeout_s=15)
    left_s = (ends_at - ctx.clock.now()).total_seconds()
    until_s = ctx.clock.boot_s() + left_s * STOP_SHARE
    while sight.alive and ctx.clock.boot_s() < until_s:
        ctx.clock.sleep(0.2)
        sight = look_once(ctx, box.shell, train_log, Progress(ctx.clock.now()))


def collect(ctx: Context, box: Box, log: Callable[[str], None]) -> None:
    """Fetch what the recipe collects; the journal says what came, with digests."""
    into: Path = ctx.artifacts_dir
    into.mkdir(parents=True, exist_ok=True)
    files = boxfiles.fetch(box.shell, ctx.recipe.collect, into)
    ctx.journal.runs.collected(
        ctx.run.id,
        [
            {"path": str(into / file.path), "bytes": file.size_bytes, "sha256": file.sha256}
            for file in files
        ],
    )
    log(f"collected {len(files)} files into {into}")
