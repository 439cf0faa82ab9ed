"""Rows of the journal that cannot be read: named, and put right where that can be."""

import logging

from gpurun.blackbox import BlackBox
from gpurun.clock import Clock
from gpurun.store import Journal
from gpurun.store.cells import put_right

log = logging.getLogger("gpurun.keeper")

LOOK_EVERY_S = 30.0


class Mending:
    """`step` is called each tick; its boxes end in their time all the while."""

    def __init__(self, journal: Journal, blackbox: BlackBox, clock: Clock) -> None:
        self._journal = journal
        self._blackbox = blackbox
        self._clock = clock
        self._looked_s: float | None = None
        self._has_looked_at_all = False

    def step(self) -> None:
        """At first at every row, then at those of boxes that may live."""
        now_s = self._clock.boot_s()
        if self._looked_s is not None and now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        database = self._journal.database
        database.require_current()  # a newer gpurun's words are no damage
        but_settled = self._has_looked_at_all
        left = put_right(database, self._blackbox.read, self._clock, but_settled=but_settled)
        self._has_looked_at_all = True
        for each in left:
            log.error("the journal is damaged: %s", each)
