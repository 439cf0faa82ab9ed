"""Timers of an earlier boot: held by the boot clock again once the time of day is certain."""

from sqlmodel import col, select

from gpurun.clock import Clock
from gpurun.model import SETTLED, TimerState
from gpurun.store.database import Database
from gpurun.store.tables import InstanceRow, TimerRow
from gpurun.timers import timer_for

STANDING = (TimerState.ARMING.value, TimerState.IN_FORCE.value, TimerState.FIRED.value)


def hold_by_this_boot(database: Database, clock: Clock) -> None:
    """Those of boxes that may live; their instants stay the same."""
    query = (
        select(TimerRow)
        .join(InstanceRow, col(InstanceRow.label) == TimerRow.label)
        .where(
            TimerRow.boot_id != clock.boot_id,
            col(TimerRow.state).in_(STANDING),
            col(InstanceRow.state).not_in([state.value for state in SETTLED]),
        )
    )
    with database.write() as session:
        for row in session.exec(query).all():
            held = timer_for(row.label, row.seq, row.kind, row.fires_at, row.ends_at, clock)
            row.boot_id = held.boot_id
            row.fires_boot_s, row.ends_boot_s = held.fires_boot_s, held.ends_boot_s
            session.add(row)
