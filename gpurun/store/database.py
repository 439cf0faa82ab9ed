"""One SQLite file: opened, migrated, and written in explicit transactions.

`synchronous=FULL` because a committed row must survive power loss: it may be the only trace of a
box.  Writers say BEGIN IMMEDIATE, so that a transaction that began can commit; readers never
wait for a writer.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session

from gpurun.errors import GpurunError
from gpurun.store.tables import BadCell

VERSIONS = ("0001", "0002", "0003")  # the steps in migrations/versions, in their order
HEAD = VERSIONS[-1]


class StoreError(GpurunError):
    """The database cannot be used; timers go on from the black box, and killing still works."""

    exit_code = 2


class Damaged(StoreError):
    """A cell holds nothing of its kind; the other rows can be read."""


class Newer(StoreError):
    """The database was written by a newer gpurun."""


class Database:
    """The journal's file.  `migrate()` is for the keeper and `up` alone."""

    def __init__(self, path: Path, busy_timeout_s: float = 5.0) -> None:
        self.path = path
        self._engine = _engine(path, busy_timeout_s)
        self._reader = self._engine.execution_options(begin="BEGIN")

    @contextmanager
    def write(self) -> Iterator[Session]:
        with (
            _explained(self.path),
            Session(self._engine, expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session

    @contextmanager
    def read(self) -> Iterator[Session]:
        with (
            _explained(self.path),
            Session(self._reader, expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session

    def version(self) -> str | None:
        """The schema's revision; None of an empty file."""
        with self.read() as session:
            connection = session.connection()
            tables = connection.exec_driver_sql(
                "SELECT name FROM sqlite_master WHERE name = 'alembic_version'"
            ).all()
            if not tables:
                return None
            row = connection.exec_driver_sql("SELECT version_num FROM alembic_version").first()
            return None if row is None else str(row[0])

    def require_current(self) -> None:
        """Raise unless this gpurun and this schema fit each other exactly."""
        have = self.version()
        if have == HEAD:
            return
        if have not in VERSIONS:
            raise Newer(
                f"{self.path} has schema {have}, which this gpurun does not know: a newer one "
                "wrote it. Upgrade gpurun; until then `gpurun status` and `gpurun kill` work."
            )
        raise StoreError(f"{self.path} has the older schema {have}; run `gpurun keeper start`.")

    def migrate(self) -> None:
        """Bring the schema up to date, after a backup; nothing changes if that fails."""
        have = self.version()
        if have == HEAD:
            return
        if have not in (None, *VERSIONS):
            self.require_current()
        from gpurun.store import schema

        if have is not None:
            with _explained(self.path):
                schema.backup(self.path, self.path.with_name(f"{self.path.name}.{have}.bak"))
        with _explained(self.path), self._engine.begin() as connection:
            schema.upgrade(connection)
        self.path.chmod(0o600)

    def close(self) -> None:
        self._engine.dispose()


def _engine(path: Path, busy_timeout_s: float) -> Engine:
    existed = path.exists()
    if not existed:
        path.touch(mode=0o600)
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": busy_timeout_s})

    @event.listens_for(engine, "connect")
    def connect(dbapi: Any, _record: object) -> None:
        dbapi.isolation_level = None  # BEGIN is ours to say
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "fullfsync=1", "foreign_keys=ON"):
            dbapi.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(
            connection.get_execution_options().get("begin", "BEGIN IMMEDIATE")
        )

    return engine


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except BadCell as error:
        raise Damaged(
            f"the journal {path} is damaged: {error}. Within half a minute the keeper puts right "
            "what it can (`gpurun keeper start`), `gpurun doctor` names what is damaged of a box; "
            "`gpurun status` and `gpurun kill` still work, and armed timers go on."
        ) from error
    except (DBAPIError, sqlite3.Error, OSError) as error:
        cause = getattr(error, "orig", None) or error
        raise StoreError(
            f"the journal {path} cannot be used: {cause}. Nothing will be rented; "
            "`gpurun status` and `gpurun kill` still work, and armed timers go on."
        ) from error
