"""The journal's schema, step by step from any older one to that of this gpurun.

Alembic is imported here alone, and only where there is a step to take: it is slow and large.
"""

import sqlite3
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

MIGRATIONS = Path(__file__).parent / "migrations"


def versions() -> tuple[str, ...]:
    """The revisions of all steps, in the order in which they are taken."""
    steps = ScriptDirectory.from_config(_alembic()).walk_revisions()
    return tuple(step.revision for step in steps)[::-1]


def upgrade(connection: Connection) -> None:
    """Take every step that is left, in the transaction of this connection."""
    config = _alembic()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def backup(source: Path, target: Path) -> None:
    """Copy a live database by SQLite's own backup call: a file copy would miss the WAL."""
    partial = target.with_name(target.name + ".tmp")
    partial.unlink(missing_ok=True)
    with sqlite3.connect(f"file:{source}?mode=ro", uri=True) as old:
        with sqlite3.connect(partial) as new:
            old.backup(new)
        new.close()
    old.close()
    partial.chmod(0o600)
    partial.replace(target)


def _alembic() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config
