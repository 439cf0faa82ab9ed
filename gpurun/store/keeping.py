"""A box that failed and is kept for a look: under a timer of its own, never past the one it had."""

from sqlmodel import Session

from gpurun.budget import Deadlines, ceiling_usd
from gpurun.clock import Clock, after
from gpurun.model import Timer, TimerState
from gpurun.provider import Traits
from gpurun.store.database import Database
from gpurun.store.ledger import add_reserve, release_reservation
from gpurun.store.rows import timer_of
from gpurun.store.runs import fence
from gpurun.store.tables import EventRow, InstanceRow, RunRow
from gpurun.store.timers import in_force, replace_at_once
from gpurun.timers import ends_in_s, timer_for

KEEP = "keep"


class Keeping:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def keep(
        self,
        run_id: str,
        label: str,
        epoch: int,
        *,
        keep_s: float,
        grace_s: float,
        traits: Traits,
        error: str,
        exit_code: int,
    ) -> Timer | None:
        """The run has failed, which is written down; its box lives on until this timer fires.

        None where the timer in force leaves no time for it.  What is no longer needed of the
        reservation is free again.
        """
        with self._database.write() as session:
            run = fence(session, run_id, epoch, label)
            box, old = session.get(InstanceRow, label), in_force(session, label)
            if box is None or old is None or old.state != TimerState.IN_FORCE:
                return None
            left_s, now = ends_in_s(timer_of(old), self._clock), self._clock.now()
            kept_s = min(keep_s, left_s - grace_s)
            if kept_s <= 0:
                return None
            fires_at, ends_at = after(now, kept_s), after(now, min(left_s, kept_s + grace_s))
            timer = timer_for(label, 0, KEEP, fires_at, ends_at, self._clock)
            timer = replace_at_once(session, old, timer)
            release_reservation(session, run_id, label, self._clock)
            ends = Deadlines(fires_at, ends_at, box.ceiling_at)
            usd = ceiling_usd(box.usd_per_hour, now, ends, traits)
            add_reserve(session, run_id, label, usd, self._clock)
            self._fail(session, run, label, error, exit_code, f"until {fires_at:%H:%M:%S} UTC")
            return timer

    def _fail(
        self, session: Session, run: RunRow, label: str, error: str, exit_code: int, until: str
    ) -> None:
        """`ending` stays open: what ends the box later does not change what the run has come to."""
        run.reason, run.error, run.exit_code = error, f"{error}\n{run.error}".strip(), exit_code
        session.add(run)
        session.add(
            EventRow(
                at=self._clock.now(), run_id=run.id, label=label, who="store", what=KEEP,
                detail=until,
            )
        )  # fmt: skip
