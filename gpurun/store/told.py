"""What a person has been told, and what a service did not take: so that a restart neither sends a
message again nor forgets it.

A try is written down before it leaves, its failure after that.  So a keeper that dies while a
message is on its way takes it for sent: its sender is a process of its own, which goes on.
"""

import os
from collections.abc import Collection
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

Key = tuple[str, str]  # of a run, or of none; of its news


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

    def claim(self, news: Collection[Key]) -> set[Key]:
        """All at once, before they are sent: those of them that were not, nor by another keeper."""
        with self._database.write() as session:
            known = {run_id: _told(session, run_id) for run_id, _ in news}
            over = {
                (run_id, key) for run_id, told in known.items() for key in told if told[key].over
            }
            claimed = set(news) - over
            for run_id, key in sorted(claimed):
                session.add(self._row(TRIED, key, run_id))
            return claimed

    def missed(self, news: Collection[Key], addresses: frozenset[int], said: str) -> None:
        """What was claimed did not reach these; `said` is what became of it at each service."""
        numbers = ",".join(map(str, sorted(addresses)))
        with self._database.write() as session:
            for run_id, key in sorted(news):
                session.add(self._row(MISSED, f"{numbers} {key}", run_id))
            session.add(self._row(FAILED, said))

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
