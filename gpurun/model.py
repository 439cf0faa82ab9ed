"""The nouns of gpurun: what is for rent, what was rented, and until when.

Units are part of the name: usd_per_hour, disk_gb (10**9 bytes), *_s (seconds).
Money is Decimal US dollars.  Every datetime is timezone-aware UTC.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Literal, get_args


class InstanceState(StrEnum):
    """What a provider's status word means for money; UNKNOWN bills."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    ENDING = "ending"
    GONE = "gone"
    UNKNOWN = "unknown"


class Ending(StrEnum):
    """Why a run is being ended; set once, by whoever is first."""

    KILL = "kill"
    DEADLINE = "deadline"
    FAILED = "failed"
    DONE = "done"


class AttemptState(StrEnum):
    """One label's way from the intent to rent to the proof that nothing bills (protocol 2)."""

    INTENT = "intent"
    SENDING = "sending"
    MADE = "made"
    REFUSED = "refused"
    UNCLEAR = "unclear"
    GHOST = "ghost"
    EXPIRED = "expired"
    SEEN = "seen"
    DELETING = "deleting"
    GONE = "gone"

    @property
    def may_bill(self) -> bool:
        return self not in (AttemptState.INTENT, *SETTLED)


SETTLED = (AttemptState.REFUSED, AttemptState.EXPIRED, AttemptState.GONE)


@dataclass(frozen=True, slots=True)
class Need:
    """What a recipe asks of a machine."""

    gpu: str | None  # None: no GPU needed
    gpu_count: int
    disk_gb: int
    image: str = ""
    spot: bool = False  # only what can be outbid; else only what cannot
    rent_s: float = 0.0  # how long it will be wanted at most; 0: not said


@dataclass(frozen=True, slots=True)
class Offer:
    """A priced thing that can be rented now.  What its provider does not tell is None or empty.

    gpu             model and form, as `H100 80GB SXM`
    reliability     0 to 1, by the provider's own reckoning
    usd_per_gb_*    what traffic costs beside the rate, by direction as the box sees it
    machine         which physical machine it is: a bad one is remembered by it
    bid_usd_per_hour  spot: what is bid, without the disk
    rentable_s      how long it may be rented at most, from now
    echo            the provider's own row, for `create` to repeat
    """

    provider: str
    id: str
    gpu: str | None
    gpu_count: int
    usd_per_hour: Decimal  # all-in, for the disk asked
    disk_gb: int
    place: str = ""
    cpu_count: int = 0
    memory_gb: int = 0
    vram_gb: int = 0  # of each GPU
    spot: bool = False
    bid_usd_per_hour: Decimal | None = None
    machine: str = ""
    nvlink: bool | None = None
    reliability: float | None = None
    driver: str = ""
    cuda: str = ""
    up_mbps: float | None = None
    down_mbps: float | None = None
    usd_per_gb_up: Decimal = Decimal(0)
    usd_per_gb_down: Decimal = Decimal(0)
    rentable_s: float | None = None
    echo: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Order:
    """One request to rent: sent once per label, ever."""

    offer: Offer
    need: Need
    label: str
    fires_at: datetime
    ends_at: datetime
    max_usd_per_hour: Decimal
    fuse_script: str = ""
    ssh_public_key: str = ""


@dataclass(frozen=True, slots=True)
class Created:
    """The answer to an order."""

    instance_id: str
    box_key: str = field(default="", repr=False)  # can end this one box; secret


@dataclass(frozen=True, slots=True)
class Instance:
    """A rented machine as its provider describes it; in prose, the box.

    traffic_usd  what its bytes have cost so far, beside the rate; None: not told
    """

    provider: str
    id: str
    label: str
    state: InstanceState
    usd_per_hour: Decimal | None
    created_at: datetime | None
    gpu: str | None = None
    gpu_count: int = 0
    machine: str = ""  # as in its offer
    message: str = ""  # why it does not start, in the provider's words
    traffic_usd: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Timer:
    """The auto-kill timer of one label: at `fires_at` training stops, at `ends_at` the box goes."""

    label: str
    seq: int
    kind: str  # "setup", "run" or "ending"
    fires_at: datetime
    ends_at: datetime
    boot_id: str
    fires_boot_s: float  # the same instants on the boot clock, valid within `boot_id`
    ends_boot_s: float


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may cost and how long its parts may take."""

    max_usd_per_hour: Decimal
    max_usd: Decimal
    setup_s: float
    run_s: float
    grace_s: float
    idle_s: float


class RunState(StrEnum):
    """What `status` says of a run."""

    ACTIVE = "active"
    DONE = "done"
    FAILED = "failed"
    KILLED = "killed"
    DEADLINE = "deadline"
    STILL_BILLING = "still_billing"


@dataclass(frozen=True, slots=True)
class Run:
    """One recipe on one instance, from the intent to the proof that it is gone."""

    id: str
    recipe_name: str
    recipe_json: str  # merged, without any secret's value
    recipe_dir: str
    provider: str
    runs_dir: str  # where artifacts land, absolute
    options_json: str
    state: RunState
    phase: str
    ending: Ending | None
    reason: str
    exit_code: int | None
    error: str
    driver_epoch: int
    bundle_sha256: str
    created_at: datetime
    finished_at: datetime | None
    collected_at: datetime | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One label: one `create`, ever."""

    label: str
    run_id: str
    provider: str
    account_id: str
    offer_id: str
    usd_per_hour: Decimal
    ceiling_at: datetime
    state: AttemptState
    ending: Ending | None
    gpu: str | None
    gpu_count: int
    sent_at: datetime | None
    instance_id: str | None
    id_from: str | None  # "answer" or "list"
    first_seen_at: datetime | None
    created_at: datetime | None
    delete_acked_at: datetime | None
    gone_at: datetime | None
    evidence_json: str


class TimerState(StrEnum):
    ARMING = "arming"
    IN_FORCE = "in_force"
    SUPERSEDED = "superseded"
    FIRED = "fired"


GuardState = Literal["none", "arming", "armed", "unknown", "refused", "disarm_due", "disarmed"]
WORDS: dict[str, Sequence[str]] = {  # that cells of the journal may hold
    "instances.state": list(AttemptState),
    "instances.ending": list(Ending),
    "timers.state": list(TimerState),
    "guards.state": get_args(GuardState),
}
