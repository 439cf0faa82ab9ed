"""W6 (protocol 5): a guard that holds a later timer than journal and black box know of.

Only a journal that was restored, with its whole directory, can be behind its guards: they are told
after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlmodel import col, func, select

from gpurun.budget import Deadlines, ceiling_usd, paid_until
from gpurun.clock import Clock, after
from gpurun.model import Timer, TimerState
from gpurun.provider import Traits
from gpurun.store.database import Database
from gpurun.store.ledger import add_booking, add_reserve, release_reservation
from gpurun.store.periods import PeriodCap
from gpurun.store.prices import left_of
from gpurun.store.rows import timer_of
from gpurun.store.tables import GuardRow, InstanceRow, RunRow, TimerRow
from gpurun.store.timers import HELD, MOST_AHEAD, in_force, replace_at_once
from gpurun.timers import ends_in_s, fires_in_s, timer_for

ZERO = Decimal(0)


@dataclass(frozen=True, slots=True)
class Ahead:
    """What a guard was read to hold."""

    label: str
    name: str
    seq: int
    ends_at: datetime


def guards_ahead(database: Database) -> list[Ahead]:
    """Of the boxes that are not ending."""
    newest = (
        select(func.max(TimerRow.seq)).where(TimerRow.label == GuardRow.label).scalar_subquery()
    )
    query = (
        select(GuardRow)
        .join(InstanceRow, col(InstanceRow.label) == GuardRow.label)
        .where(
            col(InstanceRow.ending).is_(None),
            col(InstanceRow.state).in_(HELD),
            col(GuardRow.seq_read) > newest,
            col(GuardRow.seq_read) <= newest + MOST_AHEAD,
            col(GuardRow.ends_at_read).is_not(None),
        )
    )
    with database.read() as session:
        return [
            Ahead(row.label, row.name, row.seq_read, row.ends_at_read)
            for row in session.exec(query)
            if row.ends_at_read is not None
        ]


def follow(
    database: Database, clock: Clock, guard: Ahead, traits: Traits, caps: Sequence[PeriodCap]
) -> Timer | None:
    """Put the guard's end in force: never past what the box was rented for at most, nor past what
    the money left pays, of the run and of the caps.  None: it is ending, or another process was
    faster.
    """
    with database.write() as session:
        box, old = session.get(InstanceRow, guard.label), in_force(session, guard.label)
        run = None if box is None else session.get(RunRow, box.run_id)
        if box is None or run is None or box.ending is not None:
            return None
        if old is None or old.state != TimerState.IN_FORCE or old.seq >= guard.seq:
            return None
        add_booking(session, box, run.phase, clock)
        release_reservation(session, box.run_id, box.label, clock)
        session.flush()
        now, timer = clock.now(), timer_of(old)
        left_usd = left_of(session, run, box.label, caps) or ZERO
        paid_at = paid_until(now, left_usd, box.usd_per_hour, traits)
        ends_at = max(now, min(guard.ends_at, box.ceiling_at, paid_at))
        grace_s = ends_in_s(timer, clock) - fires_in_s(timer, clock)
        fires_at = max(now, after(ends_at, -grace_s))
        ends = Deadlines(fires_at, ends_at, box.ceiling_at)
        usd = ceiling_usd(box.usd_per_hour, now, ends, traits)
        add_reserve(session, box.run_id, box.label, min(usd, max(left_usd, ZERO)), clock)
        # What the guard does not hold already must be newer than what it holds.
        seq = guard.seq if ends_at == guard.ends_at else guard.seq + 1
        followed = timer_for(box.label, seq, old.kind, fires_at, ends_at, clock)
        return replace_at_once(session, old, followed)
