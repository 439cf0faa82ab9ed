"""The guards beside the keeper: the fuse, and the provider's own timer.

A guard is what it was read to hold, never what it was told (protocol I15).
"""

from gpurun.clock import Clock
from gpurun.errors import ProviderError
from gpurun.guards.at_provider import AtProvider, at_provider
from gpurun.guards.on_box import Fuse, from_start, fuse_of
from gpurun.model import Attempt
from gpurun.provider import KeepsTimers, OverSsh, OwnFuse, Provisioner
from gpurun.store import Journal

__all__ = ["AtProvider", "Fuse", "at_provider", "disarm_all", "from_start", "fuse_of", "wanted"]


def wanted(cloud: Provisioner) -> list[tuple[str, bool]]:
    """Each guard of a box there, by name, and whether it can end the bill."""
    found = [("keeper", True), ("fuse", cloud.traits.fuse_ends_bill)]
    return [*found, ("provider", True)] if isinstance(cloud, KeepsTimers) else found


def disarm_all(cloud: Provisioner, attempt: Attempt, journal: Journal, clock: Clock) -> str:
    """Best effort, after the box is proven gone; returns what went wrong, else nothing.

    What is left is `disarm_due`, and the keeper tries again.  A fuse that ran on the box went with
    it.
    """
    if attempt.instance_id is None:
        return ""
    troubles = []
    if isinstance(cloud, OwnFuse):
        journal.timers.guard(attempt.label, "fuse", "disarm_due")
        try:
            Fuse(cloud, attempt, journal, clock).disarm()
        except (ProviderError, OSError) as error:
            troubles.append(str(error))
    elif isinstance(cloud, OverSsh):
        journal.timers.guard(attempt.label, "fuse", "disarmed")
    if guard := at_provider(cloud, attempt, journal):
        journal.timers.guard(attempt.label, "provider", "disarm_due")
        try:
            guard.disarm()
        except ProviderError as error:
            troubles.append(str(error))
    return "; ".join(troubles)
