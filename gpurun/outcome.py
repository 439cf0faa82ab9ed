"""What a run has come to: said once, by whoever sees its last box gone."""

from gpurun.model import AttemptState, Ending, RunState
from gpurun.store import Journal

FINAL = {
    Ending.DONE: (RunState.DONE, 0),
    Ending.FAILED: (RunState.FAILED, 5),
    Ending.KILL: (RunState.KILLED, 7),
    Ending.DEADLINE: (RunState.DEADLINE, 6),
}
STILL_BILLING = 10


def conclude(journal: Journal, run_id: str, unproven: str = "") -> None:
    """Write the run's final state, if nothing of it bills any more; else say that it does."""
    run = journal.runs.get(run_id)
    attempts = journal.attempts.of_run(run_id)
    live = [a for a in attempts if a.state.may_bill and a.state is not AttemptState.GHOST]
    if run.ending is None:  # a misfit box of it is ended, and it takes the next
        live = [attempt for attempt in live if attempt.ending is not None]
    if live and unproven:
        journal.runs.finish(run_id, RunState.STILL_BILLING, STILL_BILLING, unproven)
    if live:
        return
    if run.ending is None:
        journal.runs.goes_on(run_id)
        return
    state, exit_code = FINAL[run.ending]
    if run.exit_code is not None:
        exit_code = run.exit_code
    journal.runs.finish(run_id, state, exit_code)
