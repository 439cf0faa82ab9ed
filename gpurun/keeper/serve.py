"""Who is the keeper: the process that takes its lock, before it imports what a keeper needs.

More than one is often started at once; those that lose the lock are to cost next to nothing.
"""

from gpurun.locks import Taken, hold
from gpurun.places import Places

STOPPED, LOCKED = 0, 3  # told to stop; another keeper runs: no reason to start again


def serve() -> int:
    """Run until SIGTERM; returns the exit code."""
    places = Places.here().ensure()
    try:
        with hold(places.keeper_lock):
            from gpurun.keeper import process

            process.keep(places)
            return STOPPED
    except Taken:
        return LOCKED
