"""The journal: every transition is in SQLite before it is acted on.

Intentions are fenced by the driver's epoch and by `ending`; facts never are (protocol 3).
"""

from pathlib import Path

from gpurun.clock import Clock
from gpurun.store.attempts import Attempts
from gpurun.store.database import Damaged, Database, Newer, StoreError
from gpurun.store.endings import Endings
from gpurun.store.keepers import Keepers
from gpurun.store.keeping import Keeping
from gpurun.store.ledger import Ledger
from gpurun.store.levels import Levels
from gpurun.store.notices import Notices
from gpurun.store.owner import Owner
from gpurun.store.periods import OverCap
from gpurun.store.prices import Prices
from gpurun.store.proven import Proven
from gpurun.store.runs import Fenced, Runs
from gpurun.store.timers import Timers
from gpurun.store.told import Tellings

__all__ = ["Damaged", "Database", "Fenced", "Journal", "Newer", "OverCap", "StoreError"]


class Journal:
    """All tables of one database, by subject."""

    def __init__(self, path: Path, clock: Clock, busy_timeout_s: float = 5.0) -> None:
        self.database = Database(path, busy_timeout_s)
        self.owner = Owner(self.database)
        self.runs = Runs(self.database, clock)
        self.attempts = Attempts(self.database, clock)
        self.timers = Timers(self.database, clock)
        self.endings = Endings(self.database, clock)
        self.ledger = Ledger(self.database, clock)
        self.keeping = Keeping(self.database, clock)
        self.prices = Prices(self.database, clock)
        self.proven = Proven(self.database)
        self.keepers = Keepers(self.database, clock)
        self.levels = Levels(self.database, clock)
        self.notices = Notices(self.database, clock)
        self.tellings = Tellings(self.database, clock)

    def close(self) -> None:
        self.database.close()
