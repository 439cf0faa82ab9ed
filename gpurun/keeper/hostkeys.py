"""The pinned host keys of boxes that are gone: removed once their labels are watched no more (K6).

The key of a host of the user's own stays: the next run there must meet the same one.
"""

from datetime import UTC, datetime, timedelta

from gpurun.clock import Clock
from gpurun.places import Places
from gpurun.store import Journal

LOOK_EVERY_S = 3600.0
KEPT_FOR = timedelta(days=1)
EVER = datetime.fromtimestamp(0, UTC)


class HostKeys:
    """`step` is called each tick; it looks now and then, and nothing waits for it."""

    def __init__(self, places: Places, clock: Clock, journal: Journal) -> None:
        self._folder = places.known_hosts
        self._clock = clock
        self._journal = journal
        self._looked_s = float("-inf")

    def step(self) -> None:
        """What cannot be removed now, or by a journal that is not trusted, is left to the next."""
        now_s = self._clock.boot_s()
        if now_s - self._looked_s < LOOK_EVERY_S or not self._folder.exists():
            return
        self._looked_s = now_s
        if self._journal.owner.trouble():
            return
        attempts = self._journal.attempts
        live = {f"{each.provider}-{each.instance_id}" for each in attempts.live()}
        clouds = tuple(f"{name}-" for name in attempts.providers_since(EVER))
        written_before_s = (self._clock.now() - KEPT_FOR).timestamp()
        for pin in self._folder.iterdir():
            of_a_box = pin.name.startswith(clouds) and pin.name not in live
            if of_a_box and pin.stat().st_mtime < written_before_s:
                pin.unlink(missing_ok=True)
