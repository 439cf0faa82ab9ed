"""The live box of a run, for the commands that work on it."""

from gpurun.engine.context import Context, open_context
from gpurun.errors import UsageError
from gpurun.glance import agreed_clock
from gpurun.model import Attempt, AttemptState, RunState
from gpurun.places import Places
from gpurun.settings import Settings

FINISHED = (RunState.DONE, RunState.FAILED, RunState.KILLED, RunState.DEADLINE)


def live_box(run_id: str, settings: Settings) -> tuple[Context, Attempt]:
    """The run with its driver's epoch, and its box; UsageError when there is none now."""
    clock = agreed_clock(settings.state_dir)
    ctx = open_context(run_id, Places(settings.state_dir), settings, clock)
    attempt = ctx.attempt()
    if ctx.run.state in FINISHED or attempt is None or attempt.state is not AttemptState.SEEN:
        what = f"it is {ctx.run.state}" if ctx.run.state in FINISHED else "none was seen yet"
        raise UsageError(f"run {run_id} has no live box now: {what}; see `gpurun status {run_id}`")
    return ctx, attempt
