"""Timers and guards: what ends a label, when, and what each guard was last seen to hold."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from sqlmodel import Session, col, select, update

from gpurun.clock import Clock
from gpurun.errors import UsageError
from gpurun.model import AttemptState, GuardState, Timer, TimerState
from gpurun.store.ceilings import raise_ceiling
from gpurun.store.database import Database
from gpurun.store.ledger import Caps, add_reservation, release_reservation
from gpurun.store.rows import timer_of
from gpurun.store.runs import fence
from gpurun.store.tables import GuardRow, InstanceRow, TimerRow

HELD = (AttemptState.MADE.value, AttemptState.SEEN.value)
MOST_AHEAD = 1_000_000  # a guard can hold no seq that is greater by more: none was given


class Moved(UsageError):
    """Another command has given this label a timer since this one was worked out."""


@dataclass(frozen=True, slots=True)
class GuardWord:
    """One guard as the journal knows it."""

    label: str
    name: str
    state: str
    ends_bill: bool
    seq_wanted: int
    seq_read: int
    ends_at_read: datetime | None
    read_back_at: datetime | None


class Timers:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def of(self, label: str) -> Timer | None:
        """The timer in force for a label."""
        with self._database.read() as session:
            row = in_force(session, label)
            return None if row is None else timer_of(row)

    def newest(self, label: str) -> Timer | None:
        """The timer of the greatest seq, in force or not."""
        query = select(TimerRow).where(TimerRow.label == label).order_by(col(TimerRow.seq).desc())
        with self._database.read() as session:
            row = session.exec(query).first()
            return None if row is None else timer_of(row)

    def kinds(self, label: str) -> list[str]:
        """Every timer that a label has had, by kind, in their order."""
        query = select(TimerRow.kind).where(TimerRow.label == label)
        with self._database.read() as session:
            return list(session.exec(query.order_by(col(TimerRow.seq))))

    def last_seq(self, label: str) -> int:
        query = select(TimerRow.seq).where(TimerRow.label == label)
        with self._database.read() as session:
            return max(session.exec(query), default=0)

    def acknowledge(self) -> int:
        """The keeper's word: it holds these timers now."""
        new = (col(TimerRow.acked_at).is_(None), col(TimerRow.state) == TimerState.IN_FORCE)
        with self._database.read() as session:
            if session.exec(select(TimerRow.label).where(*new)).first() is None:
                return 0
        with self._database.write() as session:
            done = update(TimerRow).where(*new).values(acked_at=self._clock.now())
            return session.connection().execute(done).rowcount

    def acknowledged(self, label: str, seq: int) -> bool:
        with self._database.read() as session:
            row = session.get(TimerRow, (label, seq))
            return row is not None and row.acked_at is not None

    def arming(
        self, timer: Timer, run_id: str, epoch: int, reserve_usd: Decimal, caps: Caps
    ) -> None:
        """A1: the next timer is on disk and its cost reserved; the old one stays in force.

        More dollars of the run in `caps` than its recipe has are its ceiling from now on.
        """
        with self._database.write() as session:
            run = fence(session, run_id, epoch, timer.label)
            seqs = session.exec(select(TimerRow.seq).where(TimerRow.label == timer.label))
            if timer.seq != max(seqs, default=0) + 1:
                raise Moved(
                    f"the timer of {timer.label} is being moved by another command; try again"
                )
            release_reservation(session, run_id, timer.label, self._clock)
            session.flush()
            add_reservation(session, run_id, timer.label, reserve_usd, self._clock, caps)
            add_timer(session, timer, TimerState.ARMING)
            raise_ceiling(session, run, timer.label, caps.run_usd, timer.ends_at, self._clock)
            _want(session, timer)

    def half_done(self) -> list[Timer]:
        """Timers of boxes that are not ending, armed to replace one of their kind, which is still
        in force: whoever runs `extend` is at it, or was stopped in the middle.
        """
        query = (
            select(TimerRow)
            .join(InstanceRow, col(InstanceRow.label) == TimerRow.label)
            .where(
                TimerRow.state == TimerState.ARMING,
                col(InstanceRow.ending).is_(None),
                col(InstanceRow.state).in_(HELD),
            )
        )
        with self._database.read() as session:
            return [timer_of(row) for row in session.exec(query) if _replaces(session, row)]

    def put_in_force(self, timer: Timer) -> bool:
        """A4: this timer replaces every older one, unless one of them has fired (I14).

        True as well if the keeper has done it, for one that seemed to have died.
        """
        with self._database.write() as session:
            rows = session.exec(select(TimerRow).where(TimerRow.label == timer.label)).all()
            new = next((row for row in rows if row.seq == timer.seq), None)
            if new is None or any(row.state == TimerState.FIRED for row in rows):
                return False
            if new.state == TimerState.IN_FORCE:
                return True
            if new.state != TimerState.ARMING or any(row.seq > timer.seq for row in rows):
                return False
            for row in rows:
                row.state = TimerState.SUPERSEDED
                session.add(row)
            new.state = TimerState.IN_FORCE
            session.add(new)
            return True

    def guard(
        self,
        label: str,
        name: str,
        state: GuardState,
        *,
        seq: int | None = None,
        ends_at: datetime | None = None,
    ) -> None:
        """What a guard was seen to hold just now; `ends_at` says that it was read back.

        Without a seq it holds an older timer than the one that was wanted.  What holds a seq far
        beyond any that was given says nothing: it is unknown.
        """
        if seq is not None and seq > self.last_seq(label) + MOST_AHEAD:
            state, ends_at = "unknown", None
        with self._database.write() as session:
            row = session.get(GuardRow, (label, name)) or GuardRow(label=label, name=name)
            row.state = state
            if ends_at is not None:
                row.seq_read = row.seq_read if seq is None else seq
                row.ends_at_read, row.read_back_at = ends_at, self._clock.now()
            session.add(row)

    def guard_ends_bill(self, label: str, name: str, ends_bill: bool) -> None:
        """What was found out about a guard: whether the provider would hear it."""
        with self._database.write() as session:
            row = session.get(GuardRow, (label, name)) or GuardRow(label=label, name=name)
            row.ends_bill = ends_bill
            session.add(row)

    def guards(self, states: Collection[str], name: str | None = None) -> list[GuardWord]:
        """Those in one of these states, of every label; of one name, if it is given."""
        query = select(GuardRow).where(col(GuardRow.state).in_(states))
        if name is not None:
            query = query.where(GuardRow.name == name)
        with self._database.read() as session:
            return [_word_of(row) for row in session.exec(query)]

    def guards_of(self, label: str) -> list[GuardWord]:
        query = select(GuardRow).where(GuardRow.label == label)
        with self._database.read() as session:
            return [_word_of(row) for row in session.exec(query)]

    def guard_state(self, label: str, name: str) -> str:
        with self._database.read() as session:
            row = session.get(GuardRow, (label, name))
            return "none" if row is None else row.state

    def import_timer(self, timer: Timer) -> None:
        """W5: the black box knew a later timer than a restored database."""
        with self._database.write() as session:
            if session.get(TimerRow, (timer.label, timer.seq)) is None:
                add_timer(session, timer, TimerState.IN_FORCE)
                _want(session, timer)


def _word_of(row: GuardRow) -> GuardWord:
    return GuardWord(
        label=row.label,
        name=row.name,
        state=row.state,
        ends_bill=row.ends_bill,
        seq_wanted=row.seq_wanted,
        seq_read=row.seq_read,
        ends_at_read=row.ends_at_read,
        read_back_at=row.read_back_at,
    )


def in_force(session: Session, label: str) -> TimerRow | None:
    """The timer that counts for a label, fired or not."""
    query = (
        select(TimerRow)
        .where(TimerRow.label == label)
        .where(col(TimerRow.state).in_([TimerState.IN_FORCE, TimerState.FIRED]))
        .order_by(col(TimerRow.seq).desc())
    )
    return session.exec(query).first()


def replace_at_once(session: Session, old: TimerRow, timer: Timer) -> Timer:
    """Put a timer in force at once, part of the caller's transaction; returns it with its seq, the
    next one if its own is not greater.  The guards beside the keeper are owed it.
    """
    seqs = session.exec(select(TimerRow.seq).where(TimerRow.label == old.label))
    timer = replace(timer, seq=max(timer.seq, max(seqs) + 1))
    of_label = select(TimerRow).where(TimerRow.label == old.label)
    for row in session.exec(of_label.where(TimerRow.state != TimerState.SUPERSEDED)):
        row.state = TimerState.SUPERSEDED
        session.add(row)
    add_timer(session, timer, TimerState.IN_FORCE)
    for guard in _want(session, timer):
        if guard.name == "provider" and guard.state == "armed":
            guard.state = "arming"
    return timer


def is_being_moved(session: Session, old: TimerRow) -> bool:
    """Whether a later timer of its label is about to replace this one."""
    later = select(TimerRow.seq).where(
        TimerRow.label == old.label, TimerRow.seq > old.seq, TimerRow.state == TimerState.ARMING
    )
    return session.exec(later).first() is not None


def _replaces(session: Session, new: TimerRow) -> bool:
    old = in_force(session, new.label)
    if old is None or old.state != TimerState.IN_FORCE or old.kind != new.kind:
        return False
    seqs = session.exec(select(TimerRow.seq).where(TimerRow.label == new.label))
    return new.seq == max(seqs)


def _want(session: Session, timer: Timer) -> list[GuardRow]:
    """Each guard of its label is to hold this timer."""
    guards = list(session.exec(select(GuardRow).where(GuardRow.label == timer.label)))
    for guard in guards:
        guard.seq_wanted = timer.seq
        session.add(guard)
    return guards


def add_timer(session: Session, timer: Timer, state: str) -> None:
    session.add(
        TimerRow(
            label=timer.label,
            seq=timer.seq,
            kind=timer.kind,
            fires_at=timer.fires_at,
            ends_at=timer.ends_at,
            boot_id=timer.boot_id,
            fires_boot_s=timer.fires_boot_s,
            ends_boot_s=timer.ends_boot_s,
            state=str(state),
        )
    )
