"""The schema: which steps there are, and that a journal that has taken them needs no Alembic."""

import subprocess
import sys
from pathlib import Path

from gpurun.clock import SystemClock
from gpurun.store import Journal, schema
from gpurun.store.database import VERSIONS

OPENS = """
import sys
from pathlib import Path
from gpurun.clock import SystemClock
from gpurun.store import Journal
journal = Journal(Path(sys.argv[1]), SystemClock())
journal.database.migrate()
journal.database.require_current()
print("alembic" in sys.modules)
"""


def test_the_versions_are_those_of_the_steps() -> None:
    assert schema.versions() == VERSIONS


def test_a_journal_that_is_current_imports_no_alembic(tmp_path: Path) -> None:
    path = tmp_path / "gpurun.db"
    for imports_it in (True, False):  # the first one makes the journal
        done = subprocess.run(
            [sys.executable, "-c", OPENS, path], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == str(imports_it)
    journal = Journal(path, SystemClock())
    assert journal.database.version() == VERSIONS[-1]
    journal.close()
