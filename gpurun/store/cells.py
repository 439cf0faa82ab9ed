"""Cells of the journal that hold nothing of their kind: found, and put right.

SQLite takes anything in any column, and a hand, a bug or a bad disk may leave what is no amount,
instant or state.  What a box costs and until when, the black box has a second copy of; what has
become of it follows from the journal's other cells.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, Dialect, Table
from sqlmodel import Session, SQLModel, col, select

from gpurun.blackbox import Entry
from gpurun.clock import Clock
from gpurun.model import SETTLED, WORDS, AttemptState, Ending, TimerState
from gpurun.store.database import Database
from gpurun.store.tables import (
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
NO_BOOT = ""  # whose boot clock held a timer is not known: the time of day counts
BOOT = {"boot_id", "fires_boot_s", "ends_boot_s"}
READ_BACK = {"ends_at_read", "read_back_at"}
TOGETHER = (  # one of these damaged, all of those are written anew
    ({"fires_at", "ends_at"}, {"fires_at", "ends_at"} | BOOT),
    (BOOT, BOOT),
    (READ_BACK, READ_BACK),
)
WITHOUT_ID = (AttemptState.GHOST, AttemptState.EXPIRED, AttemptState.REFUSED)
BACK = ("recovered", "reappeared")  # events after which such an attempt may bill again


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
    """What is still damaged once all was mended that can be, by the black box's entry of its label.

    One row that cannot be keeps no other from it.
    """
    if not damaged(database, but_settled=but_settled):
        return []
    by_label = entries()
    mended: list[Damage] = []
    left: list[Damage] = []
    with database.write() as session:
        for each in list(_damaged(session.connection(), but_settled)):
            values = _right(session, each, by_label.get(each.label))
            (mended if values else left).append(each)
            if values:
                _write(session, each, values, clock)
    for each in mended:
        log.error("the journal was damaged, and is put right: %s", each)
    return left


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
    for some, whole in TOGETHER:
        bad |= whole if bad & some else set()
    try:
        values = known(session, damage.row, bad, entry)
    except BadCell:  # what it would follow from is damaged as well
        return {}
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
        ends = row["state"] == AttemptState.DELETING or "ending" in session.exec(kinds).all()
        known["ending"] = Ending.FAILED if ends else None
    if bad & {"sent_at", "first_seen_at"}:
        reserved = select(LedgerRow.at).where(
            LedgerRow.run_id == row["run_id"],
            LedgerRow.label == row["label"],
            LedgerRow.kind == "reserve",
        )
        known["sent_at"] = session.exec(reserved.order_by(col(LedgerRow.id))).first()
        was_seen = row["state"] in (AttemptState.SEEN, AttemptState.GONE)
        known["first_seen_at"] = known["sent_at"] if was_seen else None
    if "state" in bad and not bad & {"ending", "gone_at", "first_seen_at", "sent_at"}:
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
        col(EventRow.what).in_([*WITHOUT_ID, *BACK]),
    )
    what = session.exec(last.order_by(col(EventRow.id).desc())).first()
    if what in WITHOUT_ID:
        return what
    unsent = row["sent_at"] is None and (entry is None or entry.state == AttemptState.INTENT)
    return AttemptState.INTENT if unsent else AttemptState.UNCLEAR


def _timer(session: Session, row: Row, bad: set[str], entry: Entry | None) -> dict[str, Any]:
    known: dict[str, Any] = {"acked_at": None, "fired_at": None, "fired_by": None}
    known |= {"boot_id": NO_BOOT, "fires_boot_s": 0.0, "ends_boot_s": 0.0}
    if entry is not None and entry.seq == row["seq"]:
        known |= {"fires_at": entry.fires_at, "ends_at": entry.ends_at}
    if "state" in bad and (state := _timer_state(session, row)) is not None:
        known["state"] = state
    return known


def _timer_state(session: Session, row: Row) -> str | None:
    """By the others of its label: one is in force, and an ending one has fired.

    None where one of them cannot be read: which one is in force is not guessed.
    """
    if row["kind"] == "ending":
        return TimerState.FIRED
    query = select(TimerRow.seq, TimerRow.state).where(
        TimerRow.label == row["label"], TimerRow.seq != row["seq"]
    )
    others = session.exec(query).all()
    seqs = [row["seq"], *(seq for seq, _ in others)]
    if not all(isinstance(seq, int) for seq in seqs):
        return None
    if not all(state in list(TimerState) for _, state in others):
        return None
    standing = [seq for seq, state in others if state in (TimerState.IN_FORCE, TimerState.FIRED)]
    if any(seq > row["seq"] for seq in standing):
        return TimerState.SUPERSEDED
    return TimerState.ARMING if standing else TimerState.IN_FORCE


def _guard(session: Session, row: Row, _bad: set[str], _entry: Entry | None) -> dict[str, Any]:
    """It is read again; one that is left over from a box that is gone is disarmed again."""
    box = select(InstanceRow.state).where(InstanceRow.label == row["label"])
    state = "disarm_due" if session.exec(box).first() == AttemptState.GONE else "unknown"
    return {"state": state, "seq_read": 0, "ends_at_read": None, "read_back_at": None}


def _write(session: Session, damage: Damage, values: dict[str, Any], clock: Clock) -> None:
    """With a note for the report of its run."""
    this = [key == damage.row[key.name] for key in damage.table.primary_key.columns]
    session.connection().execute(damage.table.update().where(*this).values(values))
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
