"""The driver's loop over one watched training: look, keep what was seen, give up, judge."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpurun.engine import detached
from gpurun.engine.context import Context
from gpurun.engine.watch.judge import judge, tail
from gpurun.engine.watch.watcher import LOOK_S, NAME, Done, Failed, Unreachable, Watcher
from gpurun.errors import PhaseFailed, ProviderError
from gpurun.model import InstanceState
from gpurun.provider import OverSsh
from gpurun.shell import Shell
from gpurun.store import StoreError

LOCAL_TICK_S = 1.0
REMOTE_TICK_S = 3.0
ASK_PROVIDER_EVERY_S = 10.0
GIVEN_UP_S = 1800.0  # ending a box that does not answer loses all that was not collected
EVIDENCE_S = 60.0
EVIDENCE_SHARE = 0.25  # of what is left until the box must be gone
EVIDENCE = "evidence"


def watch(ctx: Context, shell: Shell, log: Path, each_look: Callable[[], None]) -> str:
    """Until the training has ended well; returns the reason.  Raises PhaseFailed otherwise.

    `shell` must not wait by itself for a line that is down: the timer would not be seen meanwhile.
    """
    watcher = watcher_of(ctx, shell, log)
    tick_s = REMOTE_TICK_S if isinstance(ctx.cloud, OverSsh) else LOCAL_TICK_S
    provider = Asked(ctx)
    known: Mapping[str, Any] = {}
    while True:
        outcome = watcher.step()
        if (document := watcher.document()) != known:
            known = document
            with suppress(StoreError):  # a journal that is locked or full does not stop a training
                ctx.journal.runs.progress(ctx.run.id, document)
        match outcome:
            case Done(reason):
                return reason
            case Failed():
                raise _failed(ctx, watcher, outcome, shell, log)
            case Unreachable():
                if lost := provider.gives_up(outcome):
                    raise PhaseFailed(f"{lost}. The training's last lines:\n{tail(log)}")
        with suppress(StoreError):
            each_look()
        if not watcher.behind:
            ctx.clock.sleep(tick_s)


def watcher_of(ctx: Context, shell: Shell, log: Path) -> Watcher:
    """A watcher that goes on from what the last one has kept in the journal."""
    kept: Mapping[str, Any] = {}
    with suppress(StoreError):
        kept = ctx.journal.runs.progress_of(ctx.run.id)
    return Watcher(ctx.recipe, shell, ctx.clock, log, kept)


def look_once(ctx: Context, shell: Shell, log: Path, _progress: object = None) -> detached.Sight:
    """A look at log and exit code alone, for whoever ends the training."""
    offset = log.stat().st_size if log.exists() else 0
    sight = detached.look(shell, NAME, offset, timeout_s=LOOK_S)
    if sight.log:
        with suppress(OSError), log.open("ab") as file:
            file.write(sight.log)
    return sight


def _failed(ctx: Context, watcher: Watcher, failed: Failed, shell: Shell, log: Path) -> PhaseFailed:
    useless_since = _useless_since(watcher, failed)
    judged = judge(
        watcher,
        failed,
        shell,
        clock=ctx.clock,
        into=ctx.artifacts_dir / EVIDENCE,
        within_s=_evidence_s(ctx),
        log=log,
    )
    with suppress(StoreError):
        document = watcher.document() | {
            "verdict": judged.document(),
            "idle_since": useless_since,
        }
        ctx.journal.runs.progress(ctx.run.id, document)
    return PhaseFailed(judged.message)


def _useless_since(watcher: Watcher, failed: Failed) -> str | None:
    """Of a training that hangs or idles: what it has cost from then on was for nothing."""
    since = {"hang": watcher.progress.moved_at, "idle": watcher.idle_since}.get(failed.how)
    return since.isoformat() if since else None


def _evidence_s(ctx: Context) -> float:
    """A share of what is left until the box must be gone: collecting needs the rest."""
    attempt = ctx.attempt()
    with suppress(StoreError):
        timer = ctx.journal.timers.of(attempt.label) if attempt else None
        if timer is not None:
            left_s = (timer.ends_at - ctx.clock.now()).total_seconds()
            return max(0.0, min(EVIDENCE_S, left_s * EVIDENCE_SHARE))
    return EVIDENCE_S


class Asked:
    """What the provider says of a box that does not answer; asked now and then."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._asked_s = -ASK_PROVIDER_EVERY_S

    def gives_up(self, lost: Unreachable) -> str:
        """Why the box is given up, if it is.

        A provider that cannot be reached either says nothing: the fault may be on this side.
        """
        now_s = self._ctx.clock.boot_s()
        if now_s - self._asked_s < ASK_PROVIDER_EVERY_S:
            return ""
        self._asked_s = now_s
        attempt = self._ctx.attempt()
        if attempt is None or attempt.instance_id is None:
            return lost.why
        try:
            row = self._ctx.cloud.instance(attempt.instance_id)
        except ProviderError:
            return ""
        if row is None or row.state is InstanceState.STOPPED:
            return f"{lost.why}; the provider says that the box has stopped"
        if now_s - lost.since_s > GIVEN_UP_S:
            minutes = (now_s - lost.since_s) / 60
            return f"the box has not answered for {minutes:.0f} minutes: {lost.why}"
        return ""
