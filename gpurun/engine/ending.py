"""KILL: every end of a run, seen from its driver.  A keeper can do all of it but the collecting."""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path

from gpurun.engine import boxfiles, detached, pushing
from gpurun.engine.box import Box
from gpurun.engine.context import Context
from gpurun.engine.seen import resolve
from gpurun.engine.watch import Progress, look_once
from gpurun.errors import GpurunError, PhaseFailed, ProviderError
from gpurun.guards import disarm_all
from gpurun.model import Attempt, AttemptState
from gpurun.outcome import conclude
from gpurun.proof import Evidence, Verdict
from gpurun.provider import Salvages
from gpurun.reaper import pursue
from gpurun.store import StoreError
from gpurun.timers import evidence_of

LOUD_AFTER_S = 60.0
RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
STOP_SHARE = 0.5  # of the grace, for the training's own checkpoint; the rest is for collecting


def end_all(ctx: Context, log: Callable[[str], None]) -> None:
    """Bring every attempt of a run that is ending to its proven end."""
    for attempt in ctx.journal.attempts.of_run(ctx.run.id):
        end_one(ctx, attempt, log)
    ctx.fact(lambda: conclude(ctx.journal, ctx.run.id))


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
        ctx.fact(lambda: ctx.journal.runs.show_phase(ctx.run.id, "collect"))
        _collect_what_can_be(ctx, attempt, log)
        ctx.fact(lambda: ctx.journal.ledger.book(attempt.label, "collect"))
        _forget_secrets(ctx, attempt, log)
    destroy(ctx, attempt, log)


def _forget_secrets(ctx: Context, attempt: Attempt, log: Callable[[str], None]) -> None:
    """A launch that never came leaves its secrets on tmpfs."""
    try:
        Box(ctx, attempt, log).forget_secrets()
    except (GpurunError, OSError) as error:
        log(f"the secrets file could not be looked for: {error}")


def destroy(ctx: Context, attempt: Attempt, log: Callable[[str], None]) -> None:
    """DELETE and PROOF, until proven; nothing but the proof ends this."""
    attempts = ctx.journal.attempts
    ctx.fact(lambda: ctx.journal.runs.show_phase(ctx.run.id, "destroy"))
    ctx.fact(lambda: attempts.deleting(attempt.label))
    began_s, rounds = ctx.clock.boot_s(), 0
    evidence = evidence_of(attempt, ctx.clock)
    while not _known_gone(ctx, attempt.label):
        try:
            evidence, verdict = pursue(evidence, ctx.cloud, ctx.clock)
        except ProviderError as error:
            verdict = Verdict(False, str(error))
        kept, acked = evidence.to_json(), evidence.acked_s is not None
        ctx.fact(partial(attempts.evidence, attempt.label, kept, acked))
        if verdict.gone:
            ctx.fact(partial(attempts.gone, attempt.label, kept))
            break
        if ctx.clock.boot_s() - began_s > LOUD_AFTER_S:
            log(f"STILL BILLING: {attempt.label}: {verdict.why}")
            ctx.fact(partial(conclude, ctx.journal, ctx.run.id, verdict.why))
        ctx.clock.sleep(_next_look_s(ctx, evidence, rounds))
        rounds += 1
    ctx.fact(lambda: ctx.journal.ledger.book(attempt.label, "destroy"))
    timer = ctx.journal.timers.of(attempt.label)
    if timer is not None:
        ctx.fact(lambda: ctx.trace(attempts.get(attempt.label), timer, "gone"))
    if trouble := disarm_all(ctx.cloud, attempt, ctx.journal, ctx.clock):
        log(f"the fuse of {attempt.label} could not be disarmed: {trouble}")
    ctx.fact(lambda: ctx.journal.runs.goes_on(ctx.run.id))
    log(f"destroyed {attempt.label}: proven gone")


def _known_gone(ctx: Context, label: str) -> bool:
    """The keeper may have been faster; a journal that cannot be read says nothing."""
    try:
        return ctx.journal.attempts.get(label).state is AttemptState.GONE
    except StoreError:
        return False


def _next_look_s(ctx: Context, evidence: Evidence, rounds: int) -> float:
    """After an acknowledged DELETE the second list is due once the gap has passed."""
    if evidence.acked_s is not None and len(evidence.listings) == 1:
        return ctx.cloud.traits.proof_gap_s
    return RETRY_S[min(rounds, len(RETRY_S) - 1)]


def _collect_what_can_be(ctx: Context, attempt: Attempt, log: Callable[[str], None]) -> None:
    """SIGTERM, wait for the checkpoint, fetch: all of it before `ends_at`, none of it required."""
    timer = ctx.journal.timers.of(attempt.label)
    if timer is None or timer.ends_at <= ctx.clock.now() or _all_collected(ctx, attempt):
        return
    for work in (partial(_stop_training, ends_at=timer.ends_at), partial(collect, log=log)):
        try:
            work(ctx, Box(ctx, attempt, log))
        except Exception as error:  # whatever a box contains, the way to its end is not blocked
            log(f"not everything could be collected: {error!r}")
            ctx.fact(
                partial(ctx.journal.runs.add_error, ctx.run.id, _not_collected(ctx, attempt, error))
            )


def _all_collected(ctx: Context, attempt: Attempt) -> bool:
    """What was fetched while training is not all of it; nor is that of a box people work on."""
    done = ctx.journal.runs.phases_done(attempt.label, ctx.work_digest)
    return "collect" in done and not ctx.stays


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
    if sight.alive:  # it ignores SIGTERM: what it still writes cannot be fetched whole
        box.shell.run(detached.kill_text("train"), timeout_s=15)


def _not_collected(ctx: Context, attempt: Attempt, error: Exception) -> str:
    said = f"Not everything was collected into {ctx.artifacts_dir}: {error}"
    if isinstance(ctx.cloud, Salvages) and attempt.instance_id is not None:
        said += f". The rest is kept in {ctx.cloud.salvage(attempt.instance_id)}"
    return said


def collect(ctx: Context, box: Box, log: Callable[[str], None]) -> None:
    """Fetch what the recipe collects; the journal says what came, with digests."""
    into: Path = ctx.artifacts_dir
    into.mkdir(parents=True, exist_ok=True)
    files, failed = boxfiles.fetch(box.shell, ctx.recipe.collect, into)
    rows = boxfiles.documents(files, into)
    ctx.fact(lambda: ctx.journal.runs.collected(ctx.run.id, rows))
    log(f"collected {len(files)} files into {into}")
    failed += pushing.last_push(ctx, box)
    if failed:
        raise PhaseFailed("; ".join(failed))
