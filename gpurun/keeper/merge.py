"""A black box that knows more than the database: of a restored one (protocol W5), of a full one."""

from gpurun.blackbox import BlackBox
from gpurun.model import AttemptState, Ending, Timer
from gpurun.store import Journal
from gpurun.store.cells import NO_BOOT
from gpurun.store.endings import KILL

UNTIL_ADOPTED = (
    "Timers are enforced, nothing is bought. Look at `gpurun status` and `gpurun orphans`, then "
    "run `gpurun keeper adopt`"
)
RESTORED = f"the database is older than timers.log: it was restored. {UNTIL_ADOPTED}"


def merge_blackbox(journal: Journal, blackbox: BlackBox) -> None:
    """Import what a restored database has forgotten; refuse to buy until a human has looked.

    StoreError: the journal could not be told all of it.
    """
    entries = {
        label: entry
        for label, entry in blackbox.read().items()
        if not entry.settled and entry.state != AttemptState.INTENT
    }
    Kills(journal, blackbox).step()
    known = journal.attempts.find(list(entries))
    for label, entry in entries.items():
        if label not in known:
            journal.owner.distrust(RESTORED)
        elif known[label].state in (AttemptState.INTENT, AttemptState.REFUSED):
            journal.owner.distrust(RESTORED)
            journal.attempts.recovered(label, entry.instance_id)
        elif entry.seq > journal.timers.last_seq(label):
            journal.owner.distrust(RESTORED)
            timer = Timer(
                label, entry.seq, "restored", entry.fires_at, entry.ends_at, NO_BOOT, 0.0, 0.0
            )
            journal.timers.import_timer(timer)


class Kills:
    """What a person has ended while the journal could not be told: written once it can be."""

    def __init__(self, journal: Journal, blackbox: BlackBox) -> None:
        self._journal = journal
        self._blackbox = blackbox
        self._written: frozenset[str] = frozenset()

    def step(self) -> None:
        labels = self._blackbox.killed() - self._written
        if not labels:
            return
        for attempt in self._journal.attempts.find(sorted(labels)).values():
            if attempt.ending is None:
                self._journal.endings.end_run(attempt.run_id, Ending.KILL, KILL, grace_s=0.0)
        self._written |= labels
