"""What cannot be read of the journal's rows: named, and put right from the black box."""

import logging

from gpurun.blackbox import BlackBox
from gpurun.clock import Clock
from gpurun.store import Journal
from gpurun.store.cells import damaged, mend

log = logging.getLogger("gpurun.keeper")

LOOK_EVERY_S = 300.0  # at every row
AGAIN_AFTER_S = 10.0  # where a tick has met one


class Mending:
    """`step` is called each tick; its boxes end in their time all the while."""

    def __init__(self, journal: Journal, blackbox: BlackBox, clock: Clock) -> None:
        self._journal = journal
        self._blackbox = blackbox
        self._clock = clock
        self._looked_s = float("-inf")

    def step(self, *, met: bool) -> None:
        """`met`: a row that this tick wanted could not be read."""
        now_s = self._clock.boot_s()
        if now_s - self._looked_s < (AGAIN_AFTER_S if met else LOOK_EVERY_S):
            return
        self._looked_s = now_s
        if not damaged(self._journal.database):
            return
        for each in mend(self._journal.database, self._blackbox.read(), self._clock):
            log.error("the journal was damaged, and is put right: %s", each)
        for each in damaged(self._journal.database):
            log.error("the journal is damaged: %s", each)
