"""Phase boot: the box is there, and a command really runs on it."""

import math
from collections.abc import Callable

from gpurun.engine.context import Context
from gpurun.errors import PhaseFailed, ProviderError, ProviderUnreachable
from gpurun.model import Attempt, Instance, InstanceState
from gpurun.shell import Connects, Shell
from gpurun.shell.trouble import LoginRefused

MARKER = "gpurun-echo"
POLL_S = 0.5
SHARE = 0.5  # of the setup's time: the rest is for what the box is rented for
MOST_S = 1200.0
UNSEEN_S, UNSEEN_MOST = 5.0, 3  # a row may lag


def boot(ctx: Context, attempt: Attempt, reach: Callable[[], Shell]) -> None:
    """Wait for it, for a share of the setup's time.  PhaseFailed: another box may do better."""
    assert attempt.instance_id is not None
    unseen, by_s = 0, _by_s(ctx, attempt)
    while True:
        try:
            row = ctx.cloud.instance(attempt.instance_id)
        except ProviderUnreachable:  # which says nothing of the box
            ctx.clock.sleep(POLL_S)
            continue
        unseen = unseen + 1 if row is None else 0
        if unseen >= UNSEEN_MOST:
            raise ProviderError(f"{attempt.label} vanished while it was booting")
        if row is not None and row.state is InstanceState.STOPPED:
            raise PhaseFailed(f"{attempt.label} stopped by itself while booting{_said(row)}")
        if row is not None and row.state is InstanceState.RUNNING and _answers(reach):
            return
        if ctx.clock.boot_s() > by_s:
            shown = row.state.value if row else "not shown"
            raise PhaseFailed(
                f"on {attempt.label} no command could be run in the time for booting: "
                f"it is {shown}{_said(row)}"
            )
        ctx.clock.sleep(POLL_S if row is not None else UNSEEN_S)


def _by_s(ctx: Context, attempt: Attempt) -> float:
    """On the boot clock; counted from the purchase, whoever drives.

    A box that was accepted is waited for as long as its timer allows: its line may be down.
    """
    if ctx.journal.runs.began(ctx.run.id, "ship"):
        return math.inf
    now = ctx.clock.now()
    passed_s = (now - (attempt.sent_at or now)).total_seconds()
    return ctx.clock.boot_s() + min(SHARE * ctx.budget.setup_s, MOST_S) - passed_s


def _answers(reach: Callable[[], Shell]) -> bool:
    try:
        line = reach()
    except ProviderError:  # it cannot tell yet where the box answers
        return False
    result = line.run(f"echo {MARKER}", timeout_s=15)
    if result.ok and MARKER in result.output:
        return True
    _stop_if_in_vain(line)
    return False


def _stop_if_in_vain(line: Shell) -> None:
    """PhaseFailed when waiting cannot let us in: the key on this machine is at fault."""
    if not isinstance(line, Connects):
        return
    try:
        line.connect()
    except LoginRefused as error:
        if error.ours:
            raise PhaseFailed(str(error)) from error
    except OSError:
        return  # not up yet


def _said(row: Instance | None) -> str:
    return f": {row.message}" if row is not None and row.message else ""
