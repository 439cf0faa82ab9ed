"""Whether anybody has written to the journal: what an idle keeper asks once a second."""

import sqlite3
from pathlib import Path


class Changes:
    def __init__(self, database: Path) -> None:
        self._database = database
        self._probe: sqlite3.Connection | None = None
        self._version: int | None = None

    def since_last(self) -> bool:
        """Since this was asked last; true as well when that cannot be told."""
        before, self._version = self._version, self._version_now()
        return self._version is None or self._version != before

    def _version_now(self) -> int | None:
        try:
            if self._probe is None:
                uri = f"file:{self._database}?mode=ro"
                self._probe = sqlite3.connect(uri, uri=True, check_same_thread=False)
            version: int = self._probe.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            self._probe = None
            return None
        return version
