"""The port to the companies and places that rent machines.

Every provider passes one contract suite (tests/contract.py).  Its promises: no method sleeps or
retries; unknown status words are UNKNOWN, and UNKNOWN bills; money is Decimal and all-in for the
disk asked; an error never holds a key.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Protocol, runtime_checkable

from gpurun.model import Created, Instance, Need, Offer, Order
from gpurun.shell import Shell


@dataclass(frozen=True, slots=True)
class Traits:
    """How far a provider's answers may lag behind its machines, declared, never discovered.

    settle_window_s  how long an unseen attempt may still appear (protocol 1)
    proof_gap_s      time between the two complete lists of a proof of death
    tail_s           billing after DELETE
    fuse_ends_bill   whether the fuse on the box can end the bill
    if_lost          what becomes of a box and its bill when this machine is gone for good
    dated            whether its answers bear a `Date`, by which our clock can be told
    """

    settle_window_s: float
    proof_gap_s: float
    tail_s: float
    fuse_ends_bill: bool
    if_lost: str = "the fuse on the box ends it 2 minutes after its timer."
    dated: bool = False


class Provisioner(Protocol):
    """A provider.  Queries either answer in full or raise `ProviderError`."""

    name: str
    traits: Traits

    def account(self) -> str:
        """Whose money it is; evidence counts only under the same account."""

    def offers(self, need: Need) -> Iterable[Offer]:
        """What can be rented now for this need, the cheapest first, all-in price.

        NoOffer, where the provider is one machine, says why that is not what is needed.
        """

    def instances(self) -> list[Instance]:
        """Everything the account holds: COMPLETE, or an error."""

    def instance(self, instance_id: str) -> Instance | None:
        """One row by id; None is the provider's word that there is none."""

    def create(self, order: Order) -> Created:
        """Rent, once.  NoCapacity: nothing was made.  CreateUnclear: the answer is not known."""

    def destroy(self, instance_id: str) -> None:
        """Ask for the end; idempotent.  Returning means acknowledged, or surely absent."""


@runtime_checkable
class OwnShell(Protocol):
    """A provider whose boxes are reached otherwise than by SSH."""

    def shell(self, instance_id: str) -> Shell:
        """A shell whose commands run inside this box, in its root directory."""


@runtime_checkable
class OwnFuse(Protocol):
    """A provider where the fuse runs beside the box, not on it."""

    def fuse_shell(self, instance_id: str) -> Shell:
        """A shell where the fuse runs: outside of what it ends."""

    def fuse_home(self, instance_id: str) -> str:
        """The directory of the fuse's files there."""

    def inside(self, instance_id: str, text: str) -> str:
        """POSIX sh text that runs `text` inside the box, from where the fuse runs."""

    def self_destroy(self, instance_id: str) -> str:
        """POSIX sh text that ends this one box, run by the fuse at its deadline."""


@dataclass(frozen=True, slots=True)
class Login:
    """How a box is reached by SSH.

    name       what its host key is pinned under: one name, one host key
    addresses  (host, port), tried in this order: direct, then through a proxy
    root       the run's own directory on the box, absolute; it exists, or `make_root` makes it
    key        private key file; None: the agent's keys and the user's default ones
    enter      sh text run before each command: what marks its processes as this box's
    make_root  sh text run in the login's home where there is no root yet
    """

    name: str
    user: str
    addresses: tuple[tuple[str, int], ...]
    root: str
    key: Path | None = None
    enter: str = ""
    make_root: str = ""


@runtime_checkable
class OverSsh(Protocol):
    """A provider whose boxes are reached by SSH; the fuse runs on the box itself."""

    def login(self, instance_id: str) -> Login:
        """ProviderError while the provider cannot tell yet where the box answers."""

    def self_destroy(self, instance_id: str) -> str:
        """POSIX sh text that ends this one box, run on it by the fuse (0 = surely ended)."""


@runtime_checkable
class EndsMany(Protocol):
    """A provider that ends many boxes by one request."""

    def destroy_many(self, instance_ids: Sequence[str]) -> None:
        """As `destroy`, for each of them: returning means that every one is acknowledged."""


@runtime_checkable
class Salvages(Protocol):
    """A provider that keeps what nobody had fetched when a box ended."""

    def salvage(self, instance_id: str) -> object:
        """Where it lies then, in words for a person."""


@runtime_checkable
class Containment(Protocol):
    """A provider that can say how surely it ends every process of a box."""

    def containment(self) -> str:
        """One line for `doctor` and `status`."""


@runtime_checkable
class Prepaid(Protocol):
    """A provider that rents as long as there is credit."""

    def credit_usd(self) -> Decimal | None:
        """What is left to spend; None where this key may not see it."""


@dataclass(frozen=True, slots=True)
class Remark:
    """One line of `doctor` on an account; `ok` is whether runs can be rented all the same."""

    what: str
    says: str
    ok: bool = True


@runtime_checkable
class Examined(Protocol):
    """A provider whose account can be looked at before anything is rented."""

    def remarks(self) -> list[Remark]:
        """What the key may do, and what about the account may cost money unasked."""


@runtime_checkable
class KeepsSshKeys(Protocol):
    """A provider that lets in, on new boxes, who is registered with the account."""

    def ssh_keys(self) -> list[str]:
        """The public keys that a new box lets in, as OpenSSH writes them."""

    def register_ssh_key(self, name: str, public_key: str) -> None:
        """Let it in on new boxes from now on."""


@runtime_checkable
class ReportsCost(Protocol):
    """A provider that says afterwards what a box has cost."""

    def billed_usd(self, instance_id: str) -> Decimal | None:
        """All that was charged for it; None while that is not known, which may last minutes."""


@runtime_checkable
class HoldsMore(Protocol):
    """A provider where things that are no boxes bill too, such as disks that outlived theirs."""

    def other_holdings(self) -> list[Instance]:
        """COMPLETE, or an error; `destroy` takes their ids."""


@runtime_checkable
class FuseFromStart(Protocol):
    """A provider that starts `Order.fuse_script` with the box, before anybody can reach it."""

    root: str  # the root of each of its boxes, known before there is one

    def self_destroy(self, instance_id: str) -> str:
        """As in OverSsh; for "" of whatever box it runs on."""


@runtime_checkable
class Rehearsal(Protocol):
    """A provider that lets the fuse be tried without ending anything."""

    def rehearsal(self, instance_id: str) -> str:
        """POSIX sh text, run on the box: 0 if its self-destroy would be heard."""


@runtime_checkable
class KeyOnBox(Protocol):
    """A provider whose fuse can end the bill with a key that the user has made for it."""

    def box_key(self) -> str:
        """The secret, for a 0600 file on the box's tmpfs; empty: none was given."""

    def box_key_file(self, instance_id: str) -> str:
        """Where on the box `self_destroy` reads it, absolute."""


@dataclass(frozen=True, slots=True)
class ProviderTimer:
    """What a provider was read to hold: it ends the box at `fires_at`, whatever became of us."""

    ref: str
    fires_at: datetime


@runtime_checkable
class KeepsTimers(Protocol):
    """A provider that can itself end a box at a time."""

    def timer_fires_at(self, ends_at: datetime) -> datetime:
        """When it would fire for this deadline: never before it."""

    def provider_timer(self, instance_id: str) -> ProviderTimer | None:
        """Read back; None: it holds none for this box.  Of several, the first to fire."""

    def arm_provider_timer(self, instance_id: str, ends_at: datetime) -> ProviderTimer | None:
        """Put it in place of what is held, and read back what is held then.

        None: it is not known to be held; ask again.  TimerRefused: this account may not.
        """

    def disarm_provider_timer(self, instance_id: str) -> None:
        """Remove it; idempotent.  Returning means that none is held."""


@runtime_checkable
class TimersAtOnce(Protocol):
    """A provider whose list of timers holds those of all boxes."""

    def provider_timers(self) -> Mapping[str, ProviderTimer]:
        """As `provider_timer` reads them back, each under the id of its box."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One kind of request to a provider, for whoever paces and repeats them (gpurun/patience.py).

    path        regular expression for the whole path
    interval_s  time between two of them on average
    burst       how many may follow each other at once
    repeat      whether it may be sent again when it fails: never so for a purchase
    """

    method: str
    path: str
    interval_s: float = 0.0
    burst: int = 1
    repeat: bool = False
