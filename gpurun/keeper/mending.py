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
        self._settled: set[str] = set()
        self._live: set[str] = set()

    def labels(self) -> set[str]:
        """Of boxes whose rows are damaged still."""
        return self._settled | self._live

    def step(self) -> None:
        """At first at every row, then at those of boxes that may live."""
        now_s, first = self._clock.boot_s(), self._looked_s is None
        if self._looked_s is not None and now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        database = self._journal.database
        database.require_current()  # a newer gpurun's words are no damage
        left = put_right(database, self._blackbox.read, self._clock, but_settled=not first)
        self._live = {each.label for each in left if each.live}
        if first:
            self._settled = {each.label for each in left} - self._live
        for each in left:
            log.error("the journal is damaged: %s", each)
