"""Cells of the journal that hold nothing of their kind: found, and put right.

SQLite takes anything in any column, and a hand, a bug or a bad disk may leave what is no amount,
instant or state.  What a box costs and until when, the black box has a second copy of; what has
become of it follows from the journal's other cells.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, Dialect, Table
from sqlmodel import Session, SQLModel, col, select

from gpurun.blackbox import Entry
from gpurun.clock import Clock
from gpurun.model import SETTLED, AttemptState, Ending, TimerState
from gpurun.store.database import Database
from gpurun.store.tables import (
    GUARD_STATES,
    BadCell,
    EventRow,
    InstanceRow,
    Instant,
    LedgerRow,
    Money,
    TimerRow,
)

log = logging.getLogger("gpurun.keeper")

Row = Mapping[str, Any]  # as SQLite has it

OF_A_BOX = ("instances", "timers", "guards")
WORDS: dict[str, Sequence[str]] = {
    "instances.state": list(AttemptState),
    "instances.ending": list(Ending),
    "timers.state": list(TimerState),
    "guards.state": GUARD_STATES,
}
NO_BOOT = ""  # whose boot clock held a timer is not known: the time of day counts
TOGETHER = (  # what is of one moment is put right together
    {"fires_at", "ends_at", "boot_id", "fires_boot_s", "ends_boot_s"},
    {"ends_at_read", "read_back_at"},
)
NOT_SEEN = (AttemptState.INTENT, AttemptState.SENDING, AttemptState.MADE)
WITHOUT_ID = (AttemptState.GHOST, AttemptState.EXPIRED, AttemptState.REFUSED)


@dataclass(frozen=True, slots=True)
class Damage:
    """One row that cannot be read."""

    table: Table
    row: Row
    columns: tuple[str, ...]
    live: bool  # its box is not known to be gone, nor its timer to be replaced

    @property
    def label(self) -> str:
        return str(self.row["label"])

    def __str__(self) -> str:
        cells = (f"{self.table.name}.{name} is {self.row[name]!r}" for name in self.columns)
        return f"{self.label}: {', '.join(cells)}"


def damaged(database: Database, *, but_settled: bool = False) -> list[Damage]:
    """Every such row of a box; `but_settled`: without those of boxes that are known to be gone."""
    with database.read() as session:
        return list(_damaged(session.connection(), but_settled))


def put_right(
    database: Database,
    entries: Callable[[], Mapping[str, Entry]],
    clock: Clock,
    *,
    but_settled: bool = False,
) -> list[Damage]:
    """What is still damaged once all was mended that can be; one row does not keep the next."""
    if not (found := damaged(database, but_settled=but_settled)):
        return []
    by_label = entries()
    for each in found:
        try:
            if mend(database, each, by_label.get(each.label), clock):
                log.error("the journal was damaged, and is put right: %s", each)
        except Exception as error:  # what it would follow from is damaged as well
            log.error("%s cannot be put right: %r", each, error)
    return damaged(database, but_settled=but_settled)


def mend(database: Database, damage: Damage, entry: Entry | None, clock: Clock) -> bool:
    """Put a row right, its numbers by the black box's entry of its label.

    False where that does not suffice, or where somebody has changed the row since.
    """
    with database.write() as session:
        now = [each for each in _damaged(session.connection()) if each == damage]
        values = _right(session, damage, entry) if now else {}
        if values:
            table = damage.table
            this = [key == damage.row[key.name] for key in table.primary_key.columns]
            session.connection().execute(table.update().where(*this).values(values))
            _note(session, damage, clock)
        return bool(values)


def _damaged(connection: Connection, but_settled: bool = False) -> Iterator[Damage]:
    words = ", ".join(f"'{state}'" for state in SETTLED)
    settled = f"SELECT label FROM instances WHERE state IN ({words})"
    over = set(connection.exec_driver_sql(settled).scalars())
    where = f"WHERE label NOT IN ({settled})" if but_settled else ""
    for name in OF_A_BOX:
        table, query = SQLModel.metadata.tables[name], f"SELECT * FROM {name} {where}"
        for row in connection.exec_driver_sql(query).mappings().all():
            bad = [c.name for c in table.columns if not _holds(c, row[c.name], connection.dialect)]
            if bad:
                live = row["label"] not in over and row.get("state") != TimerState.SUPERSEDED
                yield Damage(table, dict(row), tuple(bad), live)


def _holds(column: Column[Any], value: Any, dialect: Dialect) -> bool:
    if value is None:
        return bool(column.nullable)
    if isinstance(column.type, Instant | Money):
        try:
            column.type.process_result_value(value, dialect)
        except BadCell:
            return False
        return True
    if words := WORDS.get(str(column)):
        return value in words
    kind = column.type.python_type
    if kind is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, int if kind is bool else kind)


def _right(session: Session, damage: Damage, entry: Entry | None) -> dict[str, Any]:
    """By column; empty where one of them is not known."""
    known = {"instances": _attempt, "timers": _timer, "guards": _guard}[damage.table.name]
    bad = set(damage.columns)
    for group in TOGETHER:
        bad |= group if bad & group else set()
    values = known(session, damage.row, bad, entry)
    return {name: values[name] for name in bad} if bad <= set(values) else {}


def _attempt(session: Session, row: Row, bad: set[str], entry: Entry | None) -> dict[str, Any]:
    known: dict[str, Any] = {
        "gpu": None,
        "gpu_count": 0,
        "id_from": None,
        "created_at": None,
        "delete_acked_at": None,
        "evidence_json": "{}",
    }
    if entry is not None:
        known |= {"usd_per_hour": entry.usd_per_hour, "ceiling_at": entry.ceiling_at}
    if "ending" in bad:
        kinds = select(TimerRow.kind).where(TimerRow.label == row["label"])
        known["ending"] = Ending.FAILED if "ending" in session.exec(kinds) else None
    if bad & {"sent_at", "first_seen_at"}:
        reserved = select(LedgerRow.at).where(
            LedgerRow.run_id == row["run_id"],
            LedgerRow.label == row["label"],
            LedgerRow.kind == "reserve",
        )
        known["sent_at"] = session.exec(reserved.order_by(col(LedgerRow.id))).first()
        known["first_seen_at"] = None if row["state"] in NOT_SEEN else known["sent_at"]
    if "state" in bad and not bad & {"gone_at", "first_seen_at", "sent_at"}:
        known["state"] = _state(session, row, entry)
    return known


def _state(session: Session, row: Row, entry: Entry | None) -> str:
    """By the other cells: what is being ended is ended at its time, whatever this says."""
    if row["gone_at"] is not None:
        return AttemptState.GONE
    if row["instance_id"] is not None:
        return AttemptState.MADE if row["first_seen_at"] is None else AttemptState.SEEN
    last = select(EventRow.what).where(
        EventRow.run_id == row["run_id"],
        EventRow.label == row["label"],
        col(EventRow.what).in_(WITHOUT_ID),
    )
    if (what := session.exec(last.order_by(col(EventRow.id).desc())).first()) is not None:
        return what
    unsent = row["sent_at"] is None and (entry is None or entry.state == AttemptState.INTENT)
    return AttemptState.INTENT if unsent else AttemptState.UNCLEAR


def _timer(session: Session, row: Row, bad: set[str], entry: Entry | None) -> dict[str, Any]:
    known: dict[str, Any] = {"acked_at": None, "fired_at": None, "fired_by": None}
    if "state" in bad and (state := _timer_state(session, row)) is not None:
        known["state"] = state
    if entry is not None and entry.seq == row["seq"]:
        known |= {"fires_at": entry.fires_at, "ends_at": entry.ends_at}
        known |= {"boot_id": NO_BOOT, "fires_boot_s": 0.0, "ends_boot_s": 0.0}
    return known


def _timer_state(session: Session, row: Row) -> str | None:
    """By the others of its label: one is in force, and an ending one has fired.

    None where it cannot be told which of them came later.
    """
    if row["kind"] == "ending":
        return TimerState.FIRED
    standing = select(TimerRow.seq).where(
        TimerRow.label == row["label"],
        col(TimerRow.state).in_([TimerState.IN_FORCE, TimerState.FIRED]),
    )
    seqs = session.exec(standing).all()
    if not all(isinstance(seq, int) for seq in (row["seq"], *seqs)):
        return None
    if any(seq > row["seq"] for seq in seqs):
        return TimerState.SUPERSEDED
    return TimerState.ARMING if seqs else TimerState.IN_FORCE


def _guard(_session: Session, _row: Row, _bad: set[str], _entry: Entry | None) -> dict[str, Any]:
    """It is read again."""
    return {"state": "unknown", "seq_read": 0, "ends_at_read": None, "read_back_at": None}


def _note(session: Session, damage: Damage, clock: Clock) -> None:
    run_id = select(InstanceRow.run_id).where(InstanceRow.label == damage.label)
    session.add(
        EventRow(
            at=clock.now(),
            run_id=session.exec(run_id).first() or "",
            label=damage.label,
            who="store",
            what="note",
            detail=f"the journal was damaged, and is put right: {damage}",
        )
    )
