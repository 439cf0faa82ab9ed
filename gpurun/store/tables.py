"""The rows of the journal (protocol 2).  Rows never leave `gpurun.store`.

Instants are REAL seconds since 1970 UTC, money is TEXT: SQLite has no type that keeps either
exactly.  A cell that holds neither raises BadCell.  The columns of `timers` are frozen for ever:
any version, older or newer, must be able to end a box by them.
"""

from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation

from sqlalchemy import Float, Text
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.types import TypeDecorator
from sqlmodel import Field, SQLModel


class BadCell(ValueError):
    """A cell of the journal holds nothing of its kind."""


class Instant(TypeDecorator[datetime]):
    """An aware UTC datetime as seconds since 1970."""

    impl = Float
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> float | None:
        return None if value is None else value.timestamp()

    def process_result_value(self, value: float | None, dialect: Dialect) -> datetime | None:
        try:
            return None if value is None else datetime.fromtimestamp(value, UTC)
        except (TypeError, ValueError, OverflowError, OSError) as error:
            raise BadCell(f"{value!r} is no instant") from error


class Money(TypeDecorator[Decimal]):
    """US dollars, every digit kept."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Decimal | None, dialect: Dialect) -> str | None:
        return None if value is None else format(value, "f")

    def process_result_value(self, value: str | None, dialect: Dialect) -> Decimal | None:
        try:
            amount = None if value is None else Decimal(value)
        except (TypeError, ValueError, InvalidOperation) as error:
            raise BadCell(f"{value!r} is no amount") from error
        if amount is not None and not amount.is_finite():
            raise BadCell(f"{value!r} is no amount")
        return amount


class OwnerRow(SQLModel, table=True):
    """Whose journal this is: one row, made with the database."""

    __tablename__ = "owner"
    id: int = Field(default=1, primary_key=True)
    owner_id: str
    machine: str
    state_dir_id: str
    trouble: str = ""  # why buying is refused until `gpurun keeper adopt`


class RunRow(SQLModel, table=True):
    __tablename__ = "runs"
    id: str = Field(primary_key=True)
    recipe_name: str
    recipe_json: str
    recipe_dir: str
    provider: str
    runs_dir: str
    options_json: str = "{}"
    state: str = Field(default="active", index=True)
    phase: str = "rent"
    ending: str | None = None
    reason: str = ""
    exit_code: int | None = None
    error: str = ""
    driver_epoch: int = 0
    driver_pid: int | None = None
    bundle_sha256: str = ""
    progress_json: str = "{}"
    collected_json: str = "[]"
    created_at: datetime = Field(sa_type=Instant)
    finished_at: datetime | None = Field(default=None, sa_type=Instant)
    collected_at: datetime | None = Field(default=None, sa_type=Instant)


class InstanceRow(SQLModel, table=True):
    """An attempt: one label, one create."""

    __tablename__ = "instances"
    label: str = Field(primary_key=True)
    run_id: str = Field(index=True)
    provider: str
    account_id: str
    offer_id: str
    usd_per_hour: Decimal = Field(sa_type=Money)
    ceiling_at: datetime = Field(sa_type=Instant)
    state: str = Field(index=True)
    ending: str | None = None
    gpu: str | None = None
    gpu_count: int = 0
    sent_at: datetime | None = Field(default=None, sa_type=Instant)
    instance_id: str | None = None
    id_from: str | None = None
    first_seen_at: datetime | None = Field(default=None, sa_type=Instant)
    created_at: datetime | None = Field(default=None, sa_type=Instant)
    delete_acked_at: datetime | None = Field(default=None, sa_type=Instant)
    gone_at: datetime | None = Field(default=None, sa_type=Instant)
    evidence_json: str = "{}"


class TimerRow(SQLModel, table=True):
    __tablename__ = "timers"
    label: str = Field(primary_key=True)
    seq: int = Field(primary_key=True)
    kind: str
    fires_at: datetime = Field(sa_type=Instant)
    ends_at: datetime = Field(sa_type=Instant)
    boot_id: str
    fires_boot_s: float
    ends_boot_s: float
    state: str = Field(index=True)
    acked_at: datetime | None = Field(default=None, sa_type=Instant)
    fired_at: datetime | None = Field(default=None, sa_type=Instant)
    fired_by: str | None = None


class GuardRow(SQLModel, table=True):
    """What a guard was asked to hold, and what it was last seen to hold."""

    __tablename__ = "guards"
    label: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    state: str = "none"
    ends_bill: bool = False
    seq_wanted: int = 0
    seq_read: int = 0
    ends_at_read: datetime | None = Field(default=None, sa_type=Instant)
    read_back_at: datetime | None = Field(default=None, sa_type=Instant)
    ref: str = ""


class PhaseRow(SQLModel, table=True):
    __tablename__ = "phases"
    id: int | None = Field(default=None, primary_key=True)
    run_id: str = Field(index=True)
    label: str
    phase: str
    digest: str = ""
    began_at: datetime = Field(sa_type=Instant)
    ended_at: datetime | None = Field(default=None, sa_type=Instant)
    result: str = ""  # "", "ok" or "failed"
    detail: str = ""


class LedgerRow(SQLModel, table=True):
    """Append-only money facts; two triggers refuse any change."""

    __tablename__ = "ledger"
    id: int | None = Field(default=None, primary_key=True)
    run_id: str = Field(index=True)
    label: str
    at: datetime = Field(sa_type=Instant)
    kind: str  # reserve, release, accrue, settle
    phase: str = ""
    usd: Decimal = Field(sa_type=Money)
    since: datetime | None = Field(default=None, sa_type=Instant)  # accrue: from here to `at`


class EventRow(SQLModel, table=True):
    __tablename__ = "events"
    id: int | None = Field(default=None, primary_key=True)
    at: datetime = Field(sa_type=Instant)
    run_id: str = Field(default="", index=True)
    label: str = ""
    who: str
    what: str
    detail: str = ""


class KeeperRow(SQLModel, table=True):
    __tablename__ = "keepers"
    id: int = Field(default=1, primary_key=True)
    pid: int
    version: str
    beat: int = 0
    beat_at: datetime = Field(sa_type=Instant)


class KeeperAccountRow(SQLModel, table=True):
    """What the keeper itself last saw of an account, with its own key."""

    __tablename__ = "keeper_accounts"
    provider: str = Field(primary_key=True)
    account_id: str = Field(primary_key=True)
    listed_at: datetime | None = Field(default=None, sa_type=Instant)
    auth_ok: bool = False
    detail: str = ""
    orphans_json: str = "[]"
    credit_usd: Decimal | None = Field(default=None, sa_type=Money)
    credit_at: datetime | None = Field(default=None, sa_type=Instant)
