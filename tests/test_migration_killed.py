"""A migration that is killed half way: the next command finds the old journal or the new (F51)."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gpurun.clock import SystemClock
from gpurun.store import Journal
from gpurun.store.armed import armed
from gpurun.store.database import HEAD, VERSIONS

OLDEST = Path(__file__).parent / "journals" / "0001.sql"

# Migrates one copy after the other, each in a process that is killed one step later than the last:
# before a statement, or before what backs the old file up.  It ends with the first that gets done.
KILLER = """
import os, shutil, signal, sys
from pathlib import Path
from sqlalchemy import Engine, event
from gpurun.clock import SystemClock
from gpurun.store import Journal
import gpurun.store.schema

folder = Path(sys.argv[1])
BACKUP = ("sqlite3.connect", "os.rename", "os.remove", "os.chmod")

def migrate(path, steps):
    left = steps
    def step(*_):
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    event.listen(Engine, "before_cursor_execute", step)
    sys.addaudithook(lambda name, _: step() if name in BACKUP else None)
    Journal(path, SystemClock()).database.migrate()

for steps in range(1000):
    path = folder / f"{steps:03}" / "gpurun.db"
    path.parent.mkdir()
    shutil.copy2(folder / "old.db", path)
    child = os.fork()
    if child == 0:
        migrate(path, steps)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
    print(path)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Journals with a live run in them, whose migration was killed at each step that there is."""
    folder = tmp_path_factory.mktemp("migrations")
    with closing(sqlite3.connect(folder / "old.db")) as old:
        old.executescript(OLDEST.read_text())
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [Path(line) for line in done.stdout.split()]


def schema(path: Path) -> set[tuple[str, ...]]:
    with closing(sqlite3.connect(path)) as raw:
        return set(raw.execute("SELECT type, name, sql FROM sqlite_master"))


def test_it_is_killed_at_every_step(killed: list[Path]) -> None:
    assert len(killed) > 2 * len(VERSIONS)


def test_what_is_left_is_the_old_schema_or_the_new_one_and_whoever_comes_next_migrates_it(
    killed: list[Path],
) -> None:
    left = {path: schema(path) for path in killed}
    old, new = schema(killed[0].parents[1] / "old.db"), schema(migrated(killed[0]))
    assert old != new
    for path in killed:
        assert left[path] in (old, new), path
        with closing(Journal(migrated(path), SystemClock())) as journal:
            assert journal.database.version() == HEAD
            assert [timer.kind for _, timer in armed(journal.database)] == ["run"]
            assert [run.state for run in journal.runs.unfinished()] == ["active"]
        with closing(sqlite3.connect(path)) as raw:
            assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_backup_is_whole_or_not_there(killed: list[Path]) -> None:
    backups = [backup for path in killed for backup in path.parent.glob("*.bak")]
    assert backups
    for backup in backups:
        with closing(sqlite3.connect(backup)) as raw:
            assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert raw.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]
            assert raw.execute("SELECT count(*) FROM timers").fetchone() != (0,)


def migrated(path: Path) -> Path:
    with closing(Journal(path, SystemClock())) as journal:
        journal.database.migrate()
    return path
