"""Which runs may have news for a person.

Cheap with thousands of runs: one look reads no row of the ledger or of the events twice.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from sqlmodel import col, select

from gpurun.clock import Clock
from gpurun.store.database import Database
from gpurun.store.tables import EventRow

_LIVE = "('active', 'still_billing')"

_RUNS = f"""
SELECT id, state, phase, ending, instr(progress_json, '"verdict"') > 0 AS judged,
       exit_code IS NOT NULL AND ending IS NULL AS kept,
       CASE WHEN json_valid(recipe_json)
            THEN json_extract(recipe_json, '$.budget.max_usd') END AS budget_usd
FROM runs WHERE state IN {_LIVE}
"""
_BOXES = f"""
SELECT run_id, label, usd_per_hour, sent_at, gone_at,
       EXISTS (SELECT 1 FROM keeper_accounts AS seen
        WHERE seen.provider = box.provider AND seen.account_id = box.account_id
          AND seen.auth_ok AND seen.listed_at > :listed)
   AND EXISTS (SELECT 1 FROM guards AS guard
        WHERE guard.label = box.label AND guard.name != 'keeper' AND guard.state = 'armed'
          AND guard.read_back_at > CASE guard.name WHEN 'fuse' THEN :fuse ELSE :provider END)
       AS guarded
FROM instances AS box
WHERE run_id IN (SELECT id FROM runs WHERE state IN {_LIVE})
  AND state NOT IN ('intent', 'refused', 'expired')
"""
_MONEY = """
SELECT label, sum(CAST(usd AS REAL)), max(CASE kind WHEN 'accrue' THEN at END), max(id)
FROM ledger
WHERE id > :after AND (kind IN ('accrue', 'settle') OR (kind = 'hold' AND phase = 'traffic'))
GROUP BY label
"""
LISTED_WITHIN = timedelta(seconds=120)
FUSE_READ_WITHIN = timedelta(seconds=180)
PROVIDER_READ_WITHIN = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class Glimpse:
    """A live run at one glance; the truth of it is in its document."""

    run_id: str
    state: str
    phase: str
    ending: str | None
    judged: bool  # somebody has said why its training failed
    kept: bool  # it has failed, and its box is kept for a look
    spent_share: float  # of its budget, about; 0: not known
    guarded: bool  # each box by the keeper, that sees its account, and another


@dataclass(slots=True)
class _Booked:
    usd: float = 0.0
    until_s: float = 0.0


class Notices:
    """One for each process: it remembers how far it has read."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._booked: dict[str, _Booked] = {}
        self._ledger_id = 0
        self._event_id: int | None = None

    def glimpses(self) -> list[Glimpse]:
        """All live runs."""
        now = self._clock.now()
        with self._database.read() as session:
            ask = session.connection().exec_driver_sql
            self._read_money(ask(_MONEY, {"after": self._ledger_id}).all())
            boxes: dict[str, list[Any]] = {}
            fresh = {
                "listed": (now - LISTED_WITHIN).timestamp(),
                "fuse": (now - FUSE_READ_WITHIN).timestamp(),
                "provider": (now - PROVIDER_READ_WITHIN).timestamp(),
            }
            for box in ask(_BOXES, fresh).all():
                boxes.setdefault(box.run_id, []).append(box)
            runs = ask(_RUNS).all()
        return [self._glimpse(run, boxes.get(run.id, []), now.timestamp()) for run in runs]

    def touched(self, since: datetime) -> set[str]:
        """Runs to which something has happened since the last call; at the first, since then."""
        with self._database.read() as session:
            query = select(EventRow.run_id).where(EventRow.run_id != "").distinct()
            if self._event_id is None:
                query = query.where(col(EventRow.at) > since)
            else:
                query = query.where(col(EventRow.id) > self._event_id)
            found: set[str] = set(session.exec(query).all())
            newest = session.exec(select(EventRow.id).order_by(col(EventRow.id).desc()).limit(1))
            self._event_id = newest.first() or 0
            return found

    def _read_money(self, rows: Collection[Any]) -> None:
        for label, usd, until_s, newest in rows:
            booked = self._booked.setdefault(label, _Booked())
            booked.usd += usd
            booked.until_s = max(booked.until_s, until_s or 0.0)
            self._ledger_id = max(self._ledger_id, newest)

    def _glimpse(self, run: Any, boxes: Collection[Any], now_s: float) -> Glimpse:
        spent = sum((self._spent_usd(box, now_s) for box in boxes), 0.0)
        budget = _number(run.budget_usd)
        return Glimpse(
            run_id=run.id,
            state=run.state,
            phase=run.phase,
            ending=run.ending,
            judged=bool(run.judged),
            kept=bool(run.kept),
            spent_share=spent / budget if budget > 0 else 0.0,
            guarded=all(box.guarded for box in boxes if box.gone_at is None),
        )

    def _spent_usd(self, box: Any, now_s: float) -> float:
        booked = self._booked.get(box.label, _Booked())
        if box.sent_at is None:
            return booked.usd
        since_s = max(box.sent_at, booked.until_s)
        until_s = now_s if box.gone_at is None else box.gone_at
        hours = max(0.0, float(until_s - since_s)) / 3600
        return booked.usd + _number(box.usd_per_hour) * hours


def _number(text: object) -> float:
    try:
        return float(Decimal(str(text)))
    except InvalidOperation:
        return 0.0
