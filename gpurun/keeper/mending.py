"""Rows of the journal that cannot be read: named, and put right where that can be."""

import logging

from gpurun.blackbox import BlackBox
from gpurun.clock import Clock
from gpurun.store import Journal
from gpurun.store.cells import damaged, mend

log = logging.getLogger("gpurun.keeper")

LOOK_EVERY_S = 30.0


class Mending:
    """`step` is called each tick; its boxes end in their time all the while."""

    def __init__(self, journal: Journal, blackbox: BlackBox, clock: Clock) -> None:
        self._journal = journal
        self._blackbox = blackbox
        self._clock = clock
        self._looked_s: float | None = None

    def step(self) -> None:
        """At first at every row, then at those of boxes that may live."""
        now_s, first = self._clock.boot_s(), self._looked_s is None
        if self._looked_s is not None and now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        database = self._journal.database
        database.require_current()  # a newer gpurun's words are no damage
        if not (found := damaged(database, but_settled=not first)):
            return
        entries = self._blackbox.read()
        for each in found:
            mended = mend(database, each, entries.get(each.label), self._clock)
            is_so = "was damaged, and is put right" if mended else "is damaged"
            log.error("the journal %s: %s", is_so, each)
