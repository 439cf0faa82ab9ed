"""The keeper: the daemon that ends every box whose timer is due, after all else is gone.

One per state directory, by an OS lock; a tiny parent starts it again when it dies.  It never
rents.
"""

import os
import signal
from contextlib import suppress

from gpurun import spawn
from gpurun.clock import Deadline
from gpurun.locks import holder
from gpurun.places import Places

STARTS_WITHIN_S = 20.0
STOPS_WITHIN_S = 10.0
LOOKS_AGAIN_AFTER_S = 1.0
# Each connection has a thread, and by default glibc gives threads heaps of their own.
FEW_ARENAS = {"MALLOC_ARENA_MAX": "2"}


def running(places: Places) -> int | None:
    """The pid of the keeper; None when none runs."""
    return holder(places.keeper_lock)


def require_own_journal(places: Places) -> None:
    """UsageError if the journal is another machine's: there no keeper of this one stays."""
    from gpurun.clock import SystemClock
    from gpurun.store import Journal, StoreError

    if not places.database.exists():
        return
    journal = Journal(places.database, SystemClock())
    with suppress(StoreError):  # by the black box timers are enforced all the same
        journal.owner.require_this_machine("the keeper is not started")
    journal.close()


def start(places: Places) -> int | None:
    """Start the keeper unless one runs; returns its pid once it holds its lock."""
    if pid := running(places):
        return pid
    summon(places)
    deadline = Deadline(STARTS_WITHIN_S)
    while not deadline.passed():
        if pid := running(places):
            return pid
    return None


def summon(places: Places) -> None:
    """Start the keeper unless one runs, without waiting for it."""
    if running(places) is None:
        spawn.detached("gpurun.keeper", log=places.keeper_log)


def stop(places: Places) -> bool:
    """Ask the keeper to stop, and wait until it has; false when none ran."""
    pid = running(places)
    if pid is None:
        return False
    os.kill(pid, signal.SIGTERM)
    deadline = Deadline(STOPS_WITHIN_S)
    while not deadline.passed():
        if running(places) != pid:
            return True
    return False


def run(places: Places) -> int:
    """In the foreground, under a supervisor of the user's own; returns its exit code.

    While another keeper runs it waits: a supervisor would only start it again and again.
    """
    from gpurun.clock import SystemClock
    from gpurun.keeper.serve import LOCKED, serve

    places.ensure()
    while (code := serve()) == LOCKED:
        while running(places) is not None:
            SystemClock().sleep(LOOKS_AGAIN_AFTER_S)
    return code


def adopt(places: Places) -> str:
    """Take a moved or restored state directory over, under a new owner id, which is returned."""
    from gpurun.blackbox import BlackBox
    from gpurun.clock import SystemClock
    from gpurun.store import Journal
    from gpurun.store.owner import machine_hash

    journal = Journal(places.ensure().database, SystemClock())
    journal.database.migrate()
    owner_id = journal.owner.adopt()
    BlackBox(places.blackbox, owner_id, machine_hash()).adopt()
    return owner_id
