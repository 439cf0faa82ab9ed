"""Attempts: one label, one create.  The way of a label is the way of its money."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import sqlalchemy
from sqlmodel import Session, col, select

from gpurun.budget import GHOST_RESERVE_S, cost
from gpurun.clock import Clock
from gpurun.model import SETTLED, Attempt, AttemptState, Ending, Timer
from gpurun.store.database import Database
from gpurun.store.holds import add_hold
from gpurun.store.ledger import Caps, add_reservation, add_reserve, release_reservation
from gpurun.store.rows import attempt_from, attempt_of, columns
from gpurun.store.runs import fence
from gpurun.store.tables import BadCell, EventRow, GuardRow, InstanceRow, RunRow
from gpurun.store.timers import add_timer

_QUERY = sqlalchemy.select(*columns(Attempt, InstanceRow))
_LIVE = col(InstanceRow.state).not_in([state.value for state in SETTLED])


class Attempts:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def of_run(self, run_id: str) -> list[Attempt]:
        """Every attempt of a run, the oldest first."""
        query = select(InstanceRow).where(InstanceRow.run_id == run_id)
        with self._database.read() as session:
            rows = session.exec(query.order_by(col(InstanceRow.ceiling_at)))
            return sorted((attempt_of(row) for row in rows), key=_age)

    def live(self, provider: str | None = None) -> list[Attempt]:
        """Attempts that bill, or may; of one provider only, if it is named."""
        query = _QUERY.where(_LIVE)
        if provider is not None:
            query = query.where(col(InstanceRow.provider) == provider)
        with self._database.read() as session:
            return _found(session, query)

    def legible(
        self, provider: str, labels: Sequence[str]
    ) -> tuple[dict[str, Attempt], dict[str, bool]]:
        """Those of a provider that bill, or may, and those of these labels, as far as their rows
        can be read; of the others, whether their boxes may bill.
        """
        wanted = ((col(InstanceRow.provider) == provider) & _LIVE) | col(InstanceRow.label).in_(
            list(labels)
        )
        with self._database.read() as session:
            try:
                return {each.label: each for each in _found(session, _QUERY.where(wanted))}, {}
            except BadCell:
                found, damaged = {}, {}
                of_label = select(InstanceRow.label, InstanceRow.state).where(wanted)
                for label, state in session.connection().execute(of_label).all():
                    try:
                        [found[label]] = _found(
                            session, _QUERY.where(col(InstanceRow.label) == label)
                        )
                    except BadCell:
                        damaged[label] = state not in SETTLED
                return found, damaged

    def providers_since(self, since: datetime) -> set[str]:
        """Where labels live, or were asked for or gone since then, or a run has ended: of one whose
        journal is a restored one nobody knows what it had asked for.
        """
        ended = select(RunRow.provider).where(col(RunRow.finished_at) > since)
        query = select(InstanceRow.provider).where(
            col(InstanceRow.state).not_in([state.value for state in SETTLED])
            | (col(InstanceRow.sent_at) > since)
            | (col(InstanceRow.gone_at) > since)
        )
        with self._database.read() as session:
            return {*session.exec(query), *session.exec(ended)}

    def get(self, label: str) -> Attempt:
        with self._database.read() as session:
            return attempt_of(_row(session, label))

    def find(self, labels: Sequence[str]) -> dict[str, Attempt]:
        """Those of these labels that are ours."""
        query = select(InstanceRow).where(col(InstanceRow.label).in_(list(labels)))
        with self._database.read() as session:
            return {row.label: attempt_of(row) for row in session.exec(query)}

    def intend(
        self,
        attempt: Attempt,
        timer: Timer,
        guards: Sequence[tuple[str, bool]],
        reserve_usd: Decimal,
        caps: Caps,
        epoch: int,
    ) -> None:
        """R3: attempt, timer, guards and reservation in one transaction, inside every cap."""
        with self._database.write() as session:
            fence(session, attempt.run_id, epoch)
            add_reservation(session, attempt.run_id, attempt.label, reserve_usd, self._clock, caps)
            usd = caps.beside_usd
            add_hold(session, attempt.run_id, attempt.label, "traffic", usd, self._clock)
            session.add(
                InstanceRow(
                    label=attempt.label,
                    run_id=attempt.run_id,
                    provider=attempt.provider,
                    account_id=attempt.account_id,
                    offer_id=attempt.offer_id,
                    usd_per_hour=attempt.usd_per_hour,
                    ceiling_at=attempt.ceiling_at,
                    state=AttemptState.INTENT.value,
                    gpu=attempt.gpu,
                    gpu_count=attempt.gpu_count,
                )
            )
            add_timer(session, timer, "in_force")
            for name, ends_bill in guards:
                session.add(
                    GuardRow(
                        label=attempt.label, name=name, ends_bill=ends_bill, seq_wanted=timer.seq
                    )
                )

    def sending(self, label: str, epoch: int) -> datetime:
        """R5: from here on the request may leave, once."""
        with self._database.write() as session:
            row = _row(session, label)
            fence(session, row.run_id, epoch, label)
            row.state, row.sent_at = AttemptState.SENDING.value, self._clock.now()
            session.add(row)
            return row.sent_at

    def made(
        self, label: str, instance_id: str, id_from: str, created_at: datetime | None = None
    ) -> str:
        """R7: an id exists.  A fact: recorded whatever else has happened; but one from a list takes
        no other's place, for it may be of a twin.  Returns the id that its label has now.
        """
        with self._database.write() as session:
            row = _row(session, label)
            if _is_anothers(row, instance_id) and id_from == "list":
                return str(row.instance_id)
            if _is_anothers(row, instance_id):  # nothing that was learnt is of this one
                row.created_at = row.first_seen_at = row.delete_acked_at = None
                row.evidence_json = "{}"
            row.instance_id, row.id_from = instance_id, id_from
            row.created_at = created_at or row.created_at
            if id_from == "list":
                row.first_seen_at = row.first_seen_at or self._clock.now()
            if row.state in (AttemptState.SENDING, AttemptState.UNCLEAR, AttemptState.INTENT):
                row.state = AttemptState.MADE.value
            elif row.state in (AttemptState.GHOST, AttemptState.EXPIRED, AttemptState.REFUSED):
                row.state = AttemptState.DELETING.value
                row.ending = row.ending or Ending.FAILED.value
            session.add(row)
            return instance_id

    def recovered(self, label: str, instance_id: str | None) -> None:
        """A restored database calls it unsent, the black box knows better: it may exist."""
        with self._database.write() as session:
            row = _row(session, label)
            row.state, row.sent_at = AttemptState.UNCLEAR.value, row.sent_at or self._clock.now()
            if instance_id is not None:
                row.state, row.instance_id, row.id_from = (
                    AttemptState.MADE.value,
                    instance_id,
                    "log",
                )
            session.add(row)
            self._event(session, row, "recovered", "timers.log knew more than the database")

    def refused(self, label: str, why: str) -> None:
        """Known that nothing was made: the reservation is free again."""
        self._settle(label, AttemptState.REFUSED, why)

    def expired(self, label: str) -> None:
        self._settle(label, AttemptState.EXPIRED, "never listed within its watch")

    def unclear(self, label: str, why: str) -> None:
        with self._database.write() as session:
            row = _row(session, label)
            if row.state == AttemptState.SENDING:
                row.state = AttemptState.UNCLEAR.value
                session.add(row)
            self._event(session, row, "unclear", why)

    def ghost(self, label: str) -> None:
        """Not listed within its window: watched on; should it appear, it is ended at once, and
        what that may cost stays reserved.
        """
        with self._database.write() as session:
            row = _row(session, label)
            if row.state in (AttemptState.SENDING, AttemptState.UNCLEAR):
                row.state = AttemptState.GHOST.value
                session.add(row)
                release_reservation(session, row.run_id, label, self._clock)
                usd = cost(row.usd_per_hour, GHOST_RESERVE_S)
                add_reserve(session, row.run_id, label, usd, self._clock)
                self._event(session, row, "ghost", "not listed within its settle window")

    def seen(self, label: str, created_at: datetime | None, rate: Decimal | None) -> None:
        with self._database.write() as session:
            row = _row(session, label)
            row.first_seen_at = row.first_seen_at or self._clock.now()
            row.created_at = created_at
            if rate is not None:
                row.usd_per_hour = rate
            if row.state == AttemptState.MADE:
                row.state = AttemptState.SEEN.value
            session.add(row)

    def deleting(self, label: str) -> None:
        with self._database.write() as session:
            row = _row(session, label)
            if row.state in (AttemptState.MADE, AttemptState.SEEN):
                row.state = AttemptState.DELETING.value
                session.add(row)

    def evidence(self, label: str, evidence_json: str, acked: bool) -> None:
        with self._database.write() as session:
            row = _row(session, label)
            row.evidence_json = evidence_json
            if not acked:
                row.delete_acked_at = None  # its word was not kept: the row is listed again
            elif row.delete_acked_at is None:
                row.delete_acked_at = self._clock.now()
            session.add(row)

    def gone(self, label: str, evidence_json: str, instance_id: str | None = None) -> None:
        """K6: proven.  The reservation is free, the box bills no more.

        Nothing is written where `instance_id` was proven gone, and its label has another by now.
        """
        with self._database.write() as session:
            row = _row(session, label)
            if row.state == AttemptState.GONE or _is_anothers(row, instance_id):
                return
            row.state, row.gone_at = AttemptState.GONE.value, self._clock.now()
            row.evidence_json = evidence_json
            session.add(row)
            release_reservation(session, row.run_id, label, self._clock)
            self._event(session, row, "gone", evidence_json)

    def reappeared(self, label: str) -> None:
        """A label that was gone, or never seen, is listed: it bills, visibly (I20)."""
        with self._database.write() as session:
            row = _row(session, label)
            if row.state in (*SETTLED, AttemptState.GHOST):
                row.state, row.gone_at = AttemptState.DELETING.value, None
                row.ending = row.ending or Ending.FAILED.value
                row.evidence_json, row.delete_acked_at = "{}", None
                session.add(row)
                self._event(session, row, "reappeared", "listed though it was settled")

    def _settle(self, label: str, state: AttemptState, why: str) -> None:
        with self._database.write() as session:
            row = _row(session, label)
            row.state = state.value
            session.add(row)
            release_reservation(session, row.run_id, label, self._clock)
            self._event(session, row, state.value, why)

    def _event(self, session: Session, row: InstanceRow, what: str, detail: str) -> None:
        session.add(
            EventRow(
                at=self._clock.now(),
                run_id=row.run_id,
                label=row.label,
                who="store",
                what=what,
                detail=detail,
            )
        )


def _row(session: Session, label: str) -> InstanceRow:
    row = session.get(InstanceRow, label)
    if row is None:
        raise LookupError(f"no attempt {label} in the journal")
    return row


def _is_anothers(row: InstanceRow, instance_id: str | None) -> bool:
    return instance_id is not None and row.instance_id not in (None, instance_id)


def _found(session: Session, query: sqlalchemy.Select[Any]) -> list[Attempt]:
    return [attempt_from(row) for row in session.connection().execute(query).all()]


def _age(attempt: Attempt) -> tuple[bool, float]:
    return attempt.sent_at is None, attempt.sent_at.timestamp() if attempt.sent_at else 0.0
