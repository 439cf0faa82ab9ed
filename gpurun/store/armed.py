"""Every label that may bill, with the timer that counts for it: for the keeper's tick."""

import logging
import math
from collections.abc import Collection
from typing import Any

import sqlalchemy
from sqlmodel import Session, col, select

from gpurun.model import SETTLED, Attempt, Timer, TimerState
from gpurun.store.database import Database
from gpurun.store.rows import NAMES, attempt_from, columns, timer_from
from gpurun.store.tables import BadCell, InstanceRow, TimerRow

log = logging.getLogger("gpurun.keeper")

_WIDTH = len(NAMES[Attempt])
_QUERY = (
    sqlalchemy.select(*columns(Attempt, InstanceRow), *columns(Timer, TimerRow))
    .join(TimerRow, col(TimerRow.label) == col(InstanceRow.label))
    .where(col(TimerRow.state).in_([TimerState.IN_FORCE, TimerState.FIRED]))
    .where(col(InstanceRow.state).not_in([state.value for state in SETTLED]))
    .order_by(col(TimerRow.seq))
)
_LABELS = select(InstanceRow.label).where(
    col(InstanceRow.state).not_in([state.value for state in SETTLED])
)


def armed(database: Database) -> list[tuple[Attempt, Timer]]:
    """The soonest to end first; without the labels of which a row is damaged."""
    with database.read() as session:
        try:
            found = _found(session, _QUERY)
        except Exception:  # what a damaged row raises cannot be listed: each label by itself then
            found = []
            for label in session.exec(_LABELS).all():
                try:
                    found += _found(session, _QUERY.where(col(InstanceRow.label) == label))
                except Exception as error:
                    log.error("%s: its row cannot be read: %s", label, error)
    return sorted(found, key=lambda pair: pair[1].ends_at)


def states(database: Database, labels: Collection[str]) -> dict[str, str]:
    """Of those of these labels that are ours, in whatever words."""
    query = select(InstanceRow.label, InstanceRow.state)
    with database.read() as session:
        return dict(session.exec(query.where(col(InstanceRow.label).in_(labels))).all())


def _found(session: Session, query: Any) -> list[tuple[Attempt, Timer]]:
    newest: dict[str, Any] = {row[0]: row for row in session.connection().execute(query).all()}
    found = [(attempt_from(row[:_WIDTH]), timer_from(row[_WIDTH:])) for row in newest.values()]
    for _, timer in found:
        boot_s = (timer.fires_boot_s, timer.ends_boot_s)
        if not all(isinstance(each, float) and math.isfinite(each) for each in boot_s):
            raise BadCell(f"the timer of {timer.label} is damaged")
    return found
