"""Cells of the journal that hold nothing of their kind: found, and put right.

SQLite takes anything in any column, and a hand, a bug or a bad disk may leave what is no amount,
instant or state.  Of what the end of a box is read from, the black box has a second copy.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Column, Connection, Dialect, Table
from sqlmodel import Session, SQLModel, col, select

from gpurun.blackbox import Entry
from gpurun.clock import Clock
from gpurun.model import SETTLED, AttemptState, Ending, TimerState
from gpurun.store.database import Database
from gpurun.store.tables import EventRow, InstanceRow, Instant, LedgerRow, Money

Row = Mapping[str, Any]  # as SQLite has it

TABLES = ("instances", "timers", "guards")
WORDS: dict[str, type[StrEnum]] = {
    "instances.state": AttemptState,
    "instances.ending": Ending,
    "timers.state": TimerState,
}
NO_BOOT = ""  # whose boot clock held a timer is not known: the time of day counts
TOGETHER = (  # one of them is put right with the others
    {"fires_at", "ends_at", "boot_id", "fires_boot_s", "ends_boot_s"},
    {"state", "seq_read", "ends_at_read", "read_back_at"},
)


@dataclass(frozen=True, slots=True)
class Damage:
    """One row that cannot be read."""

    table: Table
    row: Row
    columns: tuple[str, ...]
    live: bool  # its box is not known to be gone

    @property
    def label(self) -> str:
        return str(self.row["label"])

    def __str__(self) -> str:
        cells = (f"{self.table.name}.{name} is {self.row[name]!r}" for name in self.columns)
        return f"{self.label}: {', '.join(cells)}"


def damaged(database: Database) -> list[Damage]:
    """Every such row, of live boxes and of others."""
    with database.read() as session:
        return list(_damaged(session.connection()))


def mend(database: Database, entries: Mapping[str, Entry], clock: Clock) -> list[Damage]:
    """Put right what the black box knows, or what is read again anyway; returns those rows."""
    with database.write() as session:
        mended = []
        for damage in list(_damaged(session.connection())):
            if values := _right(session, damage, entries.get(damage.label)):
                _write(session, damage, values)
                _note(session, damage, clock)
                mended.append(damage)
        return mended


def _damaged(connection: Connection) -> Iterator[Damage]:
    is_settled = col(InstanceRow.state).in_([state.value for state in SETTLED])
    settled = select(InstanceRow.label).where(is_settled)
    for name in TABLES:
        table = SQLModel.metadata.tables[name]
        for row in connection.exec_driver_sql(f"SELECT * FROM {name}").mappings().all():
            bad = [c.name for c in table.columns if not _holds(c, row[c.name], connection.dialect)]
            if bad:
                over = connection.execute(settled.where(InstanceRow.label == row["label"])).first()
                yield Damage(table, dict(row), tuple(bad), live=over is None)


def _holds(column: Column[Any], value: Any, dialect: Dialect) -> bool:
    if value is None:
        return bool(column.nullable)
    try:
        if isinstance(column.type, Instant | Money):
            column.type.process_result_value(value, dialect)
            return True
        if words := WORDS.get(str(column)):
            words(value)
            return True
    except ValueError:
        return False
    kind = column.type.python_type
    return isinstance(value, int if kind is bool else (int, float) if kind is float else kind)


def _right(session: Session, damage: Damage, entry: Entry | None) -> dict[str, Any]:
    """By column; empty where one of them is not known."""
    known = {"instances": _attempt, "timers": _timer, "guards": _guard}[damage.table.name](
        session, damage.row, entry
    )
    names = set(damage.columns)
    for group in TOGETHER:
        names |= group & set(damage.table.columns.keys()) if names & group else set()
    return {name: known[name] for name in names} if names <= set(known) else {}


def _attempt(session: Session, row: Row, entry: Entry | None) -> dict[str, Any]:
    label = row["label"]
    asked_at = select(LedgerRow.at).where(LedgerRow.label == label, LedgerRow.kind == "reserve")
    gone_at = select(EventRow.at).where(EventRow.label == label, EventRow.what == "gone")
    known: dict[str, Any] = {
        "ending": None,
        "gpu": None,
        "gpu_count": 0,
        "id_from": None,
        "first_seen_at": None,
        "created_at": None,
        "delete_acked_at": None,
        "evidence_json": "{}",
        "sent_at": session.exec(asked_at.order_by(col(LedgerRow.id))).first(),
        "gone_at": session.exec(gone_at.order_by(col(EventRow.id).desc())).first(),
    }
    if entry is None:
        return known
    return known | {
        "provider": entry.provider,
        "account_id": entry.account,
        "instance_id": entry.instance_id,
        "usd_per_hour": entry.usd_per_hour,
        "ceiling_at": entry.ceiling_at,
        "state": _state(row, entry),
    }


def _state(row: Row, entry: Entry) -> str:
    """The black box is not told of every step: what the row says of itself goes before."""
    if entry.settled or entry.state == AttemptState.DELETING:
        return entry.state
    if row["instance_id"] is not None:
        return AttemptState.MADE if row["first_seen_at"] is None else AttemptState.SEEN
    return AttemptState.INTENT if row["sent_at"] is None else AttemptState.UNCLEAR


def _timer(_session: Session, row: Row, entry: Entry | None) -> dict[str, Any]:
    known: dict[str, Any] = {"acked_at": None, "fired_at": None, "fired_by": None}
    if entry is None or entry.seq != row["seq"]:
        return known
    return known | {
        "kind": "restored",
        "state": TimerState.IN_FORCE,
        "fires_at": entry.fires_at,
        "ends_at": entry.ends_at,
        "boot_id": NO_BOOT,
        "fires_boot_s": 0.0,
        "ends_boot_s": 0.0,
    }


def _guard(_session: Session, row: Row, entry: Entry | None) -> dict[str, Any]:
    """What it holds is read again; what is to be taken away stays so."""
    known = {
        "state": "disarm_due" if row["state"] == "disarm_due" else "unknown",
        "ends_bill": False,
        "seq_read": 0,
        "ends_at_read": None,
        "read_back_at": None,
        "ref": "",
    }
    return known if entry is None else known | {"seq_wanted": entry.seq}


def _write(session: Session, damage: Damage, values: dict[str, Any]) -> None:
    table = damage.table
    this = [key == damage.row[key.name] for key in table.primary_key.columns]
    session.connection().execute(table.update().where(*this).values(values))


def _note(session: Session, damage: Damage, clock: Clock) -> None:
    run_id = select(InstanceRow.run_id).where(InstanceRow.label == damage.label)
    session.add(
        EventRow(
            at=clock.now(),
            run_id=session.exec(run_id).first() or "",
            label=damage.label,
            who="keeper",
            what="note",
            detail=f"the journal was damaged, and is put right: {damage}",
        )
    )
