"""What a person has been told, and what a service did not take: so that a restart neither sends a
message again nor forgets it.

A try is written down before it leaves, its failure after that.  So a keeper that dies while a
message is on its way takes it for sent: its sender is a process of its own, which goes on.
"""

import os
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlmodel import Session, col, select

from gpurun.clock import Clock
from gpurun.store.database import Database
from gpurun.store.tables import EventRow

TRIED = "notified"
MISSED = "not notified"
BEGAN = "notify begins"
SENT = "notify sent"
FAILED = "notify failed"

BEFORE = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Told:
    """How often one piece of news was tried, and what became of that."""

    first_at: datetime
    last_at: datetime
    tries: int = 0
    failures: int = 0
    missing: frozenset[int] = frozenset()  # numbers of the addresses that did not take it

    @property
    def over(self) -> bool:
        """Taken by all, or on its way."""
        return self.tries > self.failures


class Tellings:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def began_at(self) -> datetime:
        """Since when messages are wanted: what was before is no news.

        A first run may be written down before the keeper that it starts has looked.
        """
        query = select(EventRow.at).where(EventRow.run_id == "", EventRow.what == BEGAN).limit(1)
        with self._database.read() as session:
            known = session.exec(query).first()
        if known is None:
            self.note(BEGAN, "")
            known = self._clock.now()
        return known - BEFORE

    def of(self, run_id: str) -> dict[str, Told]:
        """By the key of the news; of no run in particular where `run_id` is empty."""
        with self._database.read() as session:
            return _told(session, run_id)

    def claim(self, run_id: str, key: str) -> bool:
        """Before it is sent; False when nothing is to be sent, or another keeper was faster."""
        with self._database.write() as session:
            known = _told(session, run_id).get(key)
            if known is not None and known.over:
                return False
            session.add(self._row(TRIED, key, run_id))
            return True

    def missed(self, run_id: str, key: str, addresses: frozenset[int]) -> None:
        """What was claimed did not reach these."""
        numbers = ",".join(map(str, sorted(addresses)))
        with self._database.write() as session:
            session.add(self._row(MISSED, f"{numbers} {key}", run_id))

    def note(self, what: str, detail: str) -> None:
        """What became of sending; of no run."""
        with self._database.write() as session:
            session.add(self._row(what, detail))

    def _row(self, what: str, detail: str, run_id: str = "") -> EventRow:
        who = f"keeper {os.getpid()}"
        return EventRow(at=self._clock.now(), run_id=run_id, who=who, what=what, detail=detail)


def _told(session: Session, run_id: str) -> dict[str, Told]:
    query = (
        select(EventRow)
        .where(EventRow.run_id == run_id, col(EventRow.what).in_([TRIED, MISSED]))
        .order_by(col(EventRow.id))
    )
    found: dict[str, Told] = {}
    for row in session.exec(query):
        missing, key = frozenset[int](), row.detail
        if row.what == MISSED:
            numbers, _, key = row.detail.partition(" ")
            missing = frozenset(int(number) for number in numbers.split(",") if number.isdigit())
        known = found.get(key) or Told(row.at, row.at)
        found[key] = replace(
            known,
            last_at=row.at,
            tries=known.tries + (row.what == TRIED),
            failures=known.failures + (row.what == MISSED),
            missing=missing,
        )
    return found
