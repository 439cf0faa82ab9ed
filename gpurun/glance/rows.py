"""Rows of the journal, gathered by run; a column that is missing reads as None."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from gpurun.glance.reader import Reader, Row
from gpurun.model import SETTLED, AttemptState

KEEPER_BEAT_WITHIN = timedelta(seconds=15)
KEEPER_LISTED_WITHIN = timedelta(seconds=120)


@dataclass(frozen=True, slots=True)
class Wallet:
    """What an account had left to spend when the keeper last asked."""

    usd: Decimal
    read_at: datetime | None


@dataclass(frozen=True, slots=True)
class Keeper:
    """What the keeper last wrote of itself, and of each account."""

    beat_at: datetime | None
    listed_at: dict[tuple[str, str], datetime | None]
    wallets: dict[tuple[str, str], Wallet]

    def alive_for(self, provider: str, account: str, now: datetime) -> bool:
        """Beating, and logged in: a keeper that cannot see the account is no guard (I15)."""
        listed_at = self.listed_at.get((provider, account))
        return (
            self.beat_at is not None
            and listed_at is not None
            and now - self.beat_at <= KEEPER_BEAT_WITHIN
            and now - listed_at <= KEEPER_LISTED_WITHIN
        )


@dataclass(slots=True)
class Parts:
    """All rows of one run."""

    run: Row
    attempts: list[Row] = field(default_factory=list)  # the oldest first
    timers: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    guards: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    ledger: list[Row] = field(default_factory=list)

    @property
    def attempt(self) -> Row | None:
        """The one that counts now: the newest that may bill, else the newest."""
        billing = [row for row in self.attempts if may_bill(row)]
        return next(reversed(billing or self.attempts), None)


def gather(reader: Reader, runs: Iterable[Row]) -> list[Parts]:
    """Each run with its rows, in the order given."""
    found = {str(run["id"]): Parts(run) for run in runs}
    by_label: dict[str, Parts] = {}
    for row in reader.of("instances", "run_id", list(found)):
        if parts := found.get(row["run_id"]):
            parts.attempts.append(row)
            by_label[row["label"]] = parts
    labels = list(by_label)
    for row in reader.of("timers", "label", labels, "seq"):
        by_label[row["label"]].timers[row["label"]].append(row)
    for row in reader.of("guards", "label", labels, "name"):
        by_label[row["label"]].guards[row["label"]].append(row)
    for row in reader.of("ledger", "run_id", list(found), "id"):
        if parts := found.get(row["run_id"]):
            parts.ledger.append(row)
    return list(found.values())


def keeper_of(reader: Reader) -> Keeper:
    beats = reader.rows("keepers")
    accounts = reader.rows("keeper_accounts")
    return Keeper(
        beat_at=instant(beats[0].get("beat_at")) if beats else None,
        listed_at={
            (row["provider"], row["account_id"]): instant(row.get("listed_at"))
            for row in accounts
            if row.get("auth_ok")
        },
        wallets={
            (row["provider"], row["account_id"]): Wallet(usd, instant(row.get("credit_at")))
            for row in accounts
            if (usd := amount(row.get("credit_usd"))) is not None
        },
    )


def may_bill(attempt: Row) -> bool:
    """A state word that this version does not know bills."""
    return attempt.get("state") not in (AttemptState.INTENT, *SETTLED)


def instant(seconds: float | None) -> datetime | None:
    """None also of what is no instant, in a damaged row."""
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def amount(text: object) -> Decimal | None:
    """None also of what is no amount, in a damaged row."""
    try:
        found = None if text is None else Decimal(str(text))
    except InvalidOperation:
        return None
    return found if found is None or found.is_finite() else None


def iso(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parsed(text: str | None, default: Any) -> Any:
    """JSON that another version may have written: what cannot be read is the default."""
    try:
        value = json.loads(text) if text else default
    except ValueError:
        return default
    return value if isinstance(value, type(default)) else default
