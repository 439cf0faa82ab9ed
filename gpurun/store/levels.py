"""How much of each cap of a day or a month is used: noted when it passes a mark, either way."""

import contextlib
import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlmodel import Session, col, select

from gpurun.clock import Clock
from gpurun.marks import passed
from gpurun.store.database import Database
from gpurun.store.periods import Room
from gpurun.store.tables import EventRow

LEVEL = "cap"  # the event, of no run
LONGEST = timedelta(days=32)


class Levels:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def note(self, rooms: Sequence[Room]) -> None:
        """Of all caps that there are: one that is not among them is one no more."""
        now = self._clock.now()
        found = {room.cap.name: _level(room) for room in rooms}
        with self._database.read() as session:
            last = _last(session, now)
        gone = {name: level | {"mark": 0} for name, level in last.items() if name not in found}
        news = [level for name, level in (found | gone).items() if _differs(level, last.get(name))]
        if not news:
            return
        with self._database.write() as session:
            for level in news:
                row = EventRow(at=now, who="keeper", what=LEVEL, detail=json.dumps(level))
                session.add(row)


def _level(room: Room) -> dict[str, Any]:
    cap = room.cap
    return {
        "name": cap.name,
        "usd": f"{cap.usd:.2f}",
        "counted_usd": f"{room.counted_usd:.2f}",
        "mark": passed(room.counted_usd, cap.usd),
        "since": cap.since.isoformat(),
        "until": cap.until.isoformat(),
    }


def _differs(level: dict[str, Any], last: dict[str, Any] | None) -> bool:
    if last is None:
        return bool(level["mark"])
    return any(level[key] != last.get(key) for key in ("mark", "usd", "since"))


def _last(session: Session, now: datetime) -> dict[str, dict[str, Any]]:
    query = (
        select(EventRow.detail)
        .where(EventRow.run_id == "", EventRow.what == LEVEL, EventRow.at > now - LONGEST)
        .order_by(col(EventRow.id))
    )
    found: dict[str, dict[str, Any]] = {}
    for detail in session.exec(query):
        with contextlib.suppress(ValueError, KeyError, TypeError):  # a damaged row
            level = json.loads(detail)
            found[level["name"]] = dict(level)
    return found
