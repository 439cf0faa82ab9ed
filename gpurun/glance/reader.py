"""The journal read with the standard library alone: read-only, never migrated, never waited for."""

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpurun.glance.amounts import ExactSum

Row = dict[str, Any]

WAIT_S = 0.5  # WAL readers wait for nobody; a program that locks the whole file is not outwaited
MANY = 500  # keys; from here on reading the whole table is quicker


class Unreadable(Exception):
    """The journal cannot be read just now; the text says why."""


class Reader:
    """One consistent look at the database.  A missing table is an empty one."""

    def __init__(self, database: Path) -> None:
        self._connection = _opened(database) if database.exists() else None

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def rows(self, table: str, rest: str = "", values: Iterable[object] = ()) -> list[Row]:
        return self.select("*", table, rest, values) if self._columns(table) else []

    def some(
        self, columns: Iterable[str], table: str, rest: str = "", values: Iterable[object] = ()
    ) -> list[Row]:
        """Rows with these columns alone, as far as the table has them."""
        known = self._columns(table)
        wanted = [name for name in columns if name in known]
        return self.select(", ".join(wanted), table, rest, values) if wanted else []

    def select(
        self, what: str, table: str, rest: str = "", values: Iterable[object] = ()
    ) -> list[Row]:
        """For sums too: `exact_sum(column)` is a decimal text, of the amounts that are some."""
        if self._connection is None:
            return []
        try:
            found = self._connection.execute(f"SELECT {what} FROM {table} {rest}", tuple(values))
            names = [column[0] for column in found.description]
            return [dict(zip(names, row, strict=True)) for row in found]
        except sqlite3.Error as error:
            raise Unreadable(_said(error)) from error

    def of(self, table: str, column: str, keys: list[str], order: str = "rowid") -> list[Row]:
        """The rows whose column is one of these keys."""
        if len(keys) > MANY:
            wanted = set(keys)
            everything = self.rows(table, f"ORDER BY {order}")
            return [row for row in everything if row.get(column) in wanted]
        marks = ", ".join("?" * len(keys))
        return self.rows(table, f"WHERE {column} IN ({marks}) ORDER BY {order}", keys)

    def _columns(self, table: str) -> set[str]:
        """Empty if there is no such table."""
        return {
            str(row["name"]) for row in self.select("name", "pragma_table_info(?)", "", [table])
        }


def _opened(database: Path) -> sqlite3.Connection:
    uri = f"file:{quote(str(database))}?mode=ro"
    try:
        return _begun(uri)
    except sqlite3.OperationalError as error:
        # In a directory that cannot be written SQLite cannot make its -shm file.  Without a
        # -wal file there is nothing that reading the bare database could miss.
        if "unable to open" in str(error) and not Path(f"{database}-wal").exists():
            try:
                return _begun(f"{uri}&immutable=1")
            except sqlite3.Error:
                pass
        raise Unreadable(_said(error)) from error
    except sqlite3.Error as error:
        raise Unreadable(_said(error)) from error


def _begun(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, timeout=WAIT_S, isolation_level=None)
    try:
        connection.create_aggregate("exact_sum", 1, ExactSum)
        connection.execute("BEGIN")
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _said(error: sqlite3.Error) -> str:
    text = str(error)
    if "locked" in text or "busy" in text:
        return "another program holds it locked"
    return text
