"""Every label that may bill, with the timer that counts for it: for the keeper's tick."""

from typing import Any

import sqlalchemy
from sqlmodel import col

from gpurun.model import SETTLED, Attempt, Timer, TimerState
from gpurun.store.database import Database
from gpurun.store.rows import NAMES, attempt_from, columns, timer_from
from gpurun.store.tables import InstanceRow, TimerRow

_WIDTH = len(NAMES[Attempt])
_QUERY = (
    sqlalchemy.select(*columns(Attempt, InstanceRow), *columns(Timer, TimerRow))
    .join(TimerRow, col(TimerRow.label) == col(InstanceRow.label))
    .where(col(TimerRow.state).in_([TimerState.IN_FORCE, TimerState.FIRED]))
    .where(col(InstanceRow.state).not_in([state.value for state in SETTLED]))
    .order_by(col(TimerRow.seq))
)


def armed(database: Database) -> list[tuple[Attempt, Timer]]:
    """The soonest to end first."""
    with database.read() as session:
        rows = session.connection().execute(_QUERY).all()
    newest: dict[str, Any] = {row[0]: row for row in rows}
    found = [(attempt_from(row[:_WIDTH]), timer_from(row[_WIDTH:])) for row in newest.values()]
    return sorted(found, key=lambda pair: pair[1].ends_at)
