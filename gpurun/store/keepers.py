"""What the keeper last did: its beat, and what it saw of each account with its own key."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlmodel import select

from gpurun.clock import Clock
from gpurun.store.database import Database
from gpurun.store.tables import KeeperAccountRow, KeeperRow


@dataclass(frozen=True, slots=True)
class KeeperWord:
    """The keeper as the journal knows it."""

    pid: int
    version: str
    beat: int
    beat_at: datetime


@dataclass(frozen=True, slots=True)
class AccountWord:
    provider: str
    account_id: str
    listed_at: datetime | None
    auth_ok: bool
    detail: str


class Keepers:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def beat(self, version: str) -> None:
        with self._database.write() as session:
            now = self._clock.now()
            row = session.get(KeeperRow, 1) or KeeperRow(
                pid=os.getpid(), version=version, beat_at=now
            )
            row.pid, row.version, row.beat, row.beat_at = os.getpid(), version, row.beat + 1, now
            session.add(row)

    def word(self) -> KeeperWord | None:
        with self._database.read() as session:
            row = session.get(KeeperRow, 1)
            return None if row is None else KeeperWord(row.pid, row.version, row.beat, row.beat_at)

    def listed(
        self, provider: str, account_id: str, orphans: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """A complete list of this account was read just now."""
        self._account(provider, account_id, True, "", json.dumps(list(orphans)))

    def not_listed(self, provider: str, account_id: str, why: str) -> None:
        self._account(provider, account_id, False, why, None)

    def credit(self, provider: str, account_id: str, usd: Decimal) -> None:
        """What is left to spend there, read just now; after its list."""
        with self._database.write() as session:
            row = session.get(KeeperAccountRow, (provider, account_id))
            if row is not None:
                row.credit_usd, row.credit_at = usd, self._clock.now()
                session.add(row)

    def account(self, provider: str, account_id: str) -> AccountWord | None:
        with self._database.read() as session:
            row = session.get(KeeperAccountRow, (provider, account_id))
            return None if row is None else _account_of(row)

    def accounts(self) -> list[AccountWord]:
        with self._database.read() as session:
            return [_account_of(row) for row in session.exec(select(KeeperAccountRow))]

    def _account(
        self, provider: str, account_id: str, auth_ok: bool, detail: str, orphans: str | None
    ) -> None:
        with self._database.write() as session:
            row = session.get(KeeperAccountRow, (provider, account_id)) or KeeperAccountRow(
                provider=provider, account_id=account_id
            )
            row.auth_ok, row.detail = auth_ok, detail
            if orphans is not None:
                row.listed_at, row.orphans_json = self._clock.now(), orphans
            session.add(row)


def _account_of(row: KeeperAccountRow) -> AccountWord:
    return AccountWord(row.provider, row.account_id, row.listed_at, row.auth_ok, row.detail)
