"""K1: a run begins to end.  Set once, by whoever is first; from then on any keeper goes on."""

import os
from datetime import timedelta

from sqlmodel import Session, col, select

from gpurun.blackbox import killed_labels
from gpurun.clock import Clock
from gpurun.errors import UsageError
from gpurun.model import SETTLED, AttemptState, Ending, RunState, Timer, TimerState
from gpurun.places import Places
from gpurun.store.database import Database
from gpurun.store.prices import PRICE
from gpurun.store.rows import timer_of
from gpurun.store.tables import EventRow, InstanceRow, RunRow, TimerRow
from gpurun.store.timers import add_timer, in_force
from gpurun.timers import ends_in_s, fires_in_s, timer_for

KILL = "gpurun kill"  # the reason for it


class Endings:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def end_run(
        self, run_id: str, ending: Ending, reason: str, grace_s: float, late_collect_s: float = 0.0
    ) -> list[Timer]:
        """End a run and all its attempts; returns the timers now in force, for the black box.

        The new deadline is min(old E, now + grace).  One exception, once: an E that had already
        passed when first seen (everything slept) becomes now + `late_collect_s`, so that the
        newest checkpoint can be fetched; never more than was missed since `fires_at`, for who was
        away for seconds slept through no collection.
        """
        with self._database.write() as session:
            return self._end_run(session, run_id, ending, reason, grace_s, late_collect_s)

    def fire(
        self, timer: Timer, run_id: str, reason: str, late_collect_s: float
    ) -> list[Timer] | None:
        """A timer is due: claimed and acted on in one transaction; None if it was claimed before.

        The timer's own `ends_at` stands.  Of one that came with a price, that is the reason.  It
        ends the run, unless that has gone on with a later box: then its own box alone.
        """
        with self._database.write() as session:
            row = session.get(TimerRow, (timer.label, timer.seq))
            if row is None or row.fired_at is not None or row.state != TimerState.IN_FORCE:
                return None
            row.state, row.fired_at = TimerState.FIRED, self._clock.now()
            row.fired_by = f"keeper {os.getpid()}"
            session.add(row)
            grace_s = max(0.0, (timer.ends_at - self._clock.now()).total_seconds())
            if timer.kind == PRICE:
                reason = _said_of_price(session, timer.label) or reason
            box = session.get(InstanceRow, timer.label)
            if box is not None and _has_gone_on(session, box):
                self._event(session, run_id, f"attempt {Ending.DEADLINE}", reason)
                ended = self._end(session, box, Ending.DEADLINE, grace_s, late_collect_s)
                return [ended] if ended else []
            return self._end_run(session, run_id, Ending.DEADLINE, reason, grace_s, late_collect_s)

    def _end_run(
        self,
        session: Session,
        run_id: str,
        ending: Ending,
        reason: str,
        grace_s: float,
        late_collect_s: float,
    ) -> list[Timer]:
        run = session.get(RunRow, run_id)
        if run is None:
            raise UsageError(f"no run {run_id}; `gpurun status --all` lists them")
        if run.exit_code is not None and run.state == RunState.ACTIVE:  # failed, and was kept
            ending, reason = Ending.FAILED, run.reason
        elif run.ending is None and self._was_killed(run_id):
            ending, reason = Ending.KILL, KILL
        if run.ending is None:
            run.ending, run.reason = ending.value, reason
            session.add(run)
            self._event(session, run_id, ending.value, reason)
        rows = session.exec(
            select(InstanceRow).where(
                InstanceRow.run_id == run_id,
                col(InstanceRow.state).not_in([state.value for state in SETTLED]),
            )
        ).all()
        return [
            timer
            for row in rows
            if (timer := self._end(session, row, ending, grace_s, late_collect_s))
        ]

    def _was_killed(self, run_id: str) -> bool:
        """By a person, while the journal could not be told: the black box has a note of it."""
        try:
            labels = killed_labels(Places(self._database.path.parent).blackbox)
        except OSError:
            return False
        return any(f"-{run_id}-" in label for label in labels)

    def end_attempt(self, label: str, ending: Ending, reason: str) -> list[Timer]:
        """End one misfit box at once; its run goes on with the next offer."""
        with self._database.write() as session:
            row = session.get(InstanceRow, label)
            if row is None:
                raise LookupError(f"no attempt {label} in the journal")
            self._event(session, row.run_id, f"attempt {ending.value}", reason)
            timer = self._end(session, row, ending, 0.0, 0.0)
            return [timer] if timer else []

    def hurry(self, run_id: str) -> list[Timer]:
        """`kill --no-collect` of a run that is already ending: nothing more is waited for."""
        with self._database.write() as session:
            rows = session.exec(select(InstanceRow).where(InstanceRow.run_id == run_id)).all()
            timers = []
            for row in rows:
                if row.state not in SETTLED and (old := in_force(session, row.label)):
                    timers.append(self._replace(session, old, 0.0))
            return timers

    def _end(
        self,
        session: Session,
        row: InstanceRow,
        ending: Ending,
        grace_s: float,
        late_collect_s: float,
    ) -> Timer | None:
        first = row.ending is None
        row.ending = row.ending or ending.value
        session.add(row)
        old = in_force(session, row.label)
        if old is None:
            return None
        left_s = ends_in_s(timer_of(old), self._clock)
        if first and left_s <= 0 and late_collect_s:
            missed_s = -fires_in_s(timer_of(old), self._clock)
            return self._replace(session, old, min(late_collect_s, missed_s))
        return self._replace(session, old, min(left_s, grace_s)) if first else timer_of(old)

    def _replace(self, session: Session, old: TimerRow, left_s: float) -> Timer:
        now = self._clock.now()
        ends_at = now + timedelta(seconds=max(0.0, left_s))
        seq = _last_seq(session, old.label) + 1
        timer = timer_for(old.label, seq, "ending", now, ends_at, self._clock)
        if old.state == TimerState.IN_FORCE:
            old.state = TimerState.SUPERSEDED
            session.add(old)
        add_timer(session, timer, TimerState.FIRED)
        return timer

    def _event(self, session: Session, run_id: str, what: str, detail: str) -> None:
        session.add(
            EventRow(
                at=self._clock.now(),
                run_id=run_id,
                who=f"pid {os.getpid()}",
                what=what,
                detail=detail,
            )
        )


def _said_of_price(session: Session, label: str) -> str:
    query = select(EventRow.detail).where(EventRow.label == label, EventRow.what == PRICE)
    return session.exec(query.order_by(col(EventRow.id).desc())).first() or ""


def _has_gone_on(session: Session, box: InstanceRow) -> bool:
    """Whether its run has a later box that is not being ended."""
    later = select(InstanceRow.label).where(
        InstanceRow.run_id == box.run_id,
        col(InstanceRow.ending).is_(None),
        col(InstanceRow.state).not_in([*SETTLED, AttemptState.INTENT]),
        col(InstanceRow.sent_at) > box.sent_at,
    )
    return box.sent_at is not None and session.exec(later).first() is not None


def _last_seq(session: Session, label: str) -> int:
    return max(session.exec(select(TimerRow.seq).where(TimerRow.label == label)), default=0)
