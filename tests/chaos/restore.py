"""Backups of a state directory, and their return while a box lives (protocol F40, F41)."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from gpurun.places import Places

BLACKBOX = "black box"  # a word of the deed: timers.log is put back, too


def back_up(places: Places, kept: Path) -> None:
    """As SQLite copies a journal in use, and its black box."""
    kept.mkdir()
    with (
        closing(sqlite3.connect(f"file:{places.database}?mode=ro", uri=True)) as journal,
        closing(sqlite3.connect(kept / places.database.name)) as into,
    ):
        journal.backup(into)
    if places.blackbox.exists():
        shutil.copy2(places.blackbox, kept / places.blackbox.name)


def put_back(places: Places, kept: Path, words: tuple[str, ...]) -> None:
    """With nothing of gpurun at work; the journal alone, or all that tells of timers."""
    for path in places.database.parent.glob(f"{places.database.name}*"):
        path.unlink()
    shutil.copy2(kept / places.database.name, places.database)
    if BLACKBOX in words:
        places.blackbox.unlink(missing_ok=True)
        if (kept / places.blackbox.name).exists():
            shutil.copy2(kept / places.blackbox.name, places.blackbox)
