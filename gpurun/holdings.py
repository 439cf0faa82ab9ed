"""What an account holds beside our runs: whose it is, and what it costs.

How a box is known is told in gpurun/identity.py.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from gpurun.blackbox import BlackBox
from gpurun.identity import came_after, is_box_of
from gpurun.model import SETTLED, Attempt, AttemptState, Instance, InstanceState
from gpurun.provider import HoldsMore, Provisioner

if TYPE_CHECKING:
    from gpurun.store import Journal

LABEL = re.compile(r"gpurun-([a-z0-9]+)-[a-z0-9]+-[a-z0-9]+")
UNRESOLVED = (AttemptState.SENDING, AttemptState.UNCLEAR, AttemptState.GHOST)


class Whose(StrEnum):
    """Who has probably bought it.  Only a human ends any of these."""

    OURS = "ours"  # by this journal, or with its owner id; its timer is over, or not known here
    OTHER_OWNER = "other_owner"  # by gpurun, with another state directory
    PROBABLY_OURS = "probably_ours"  # came after a purchase of ours that it may be from
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Claim:
    """One label of ours, as far as it takes to tell its box from others."""

    provider: str
    label: str
    state: str  # as in model.AttemptState
    instance_id: str | None
    created_at: datetime | None = None  # by the provider
    sent_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """Who we are, and every label of ours that a row may be of."""

    owner_id: str = ""
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True, slots=True)
class Orphan:
    """Something that bills, or may, and that no timer of this journal covers."""

    row: Instance
    account_id: str
    kind: str  # "box"; "disk" for what bills without being one
    whose: Whose

    @property
    def owner_id(self) -> str:
        return owner_of(self.row.label)


def rows_of(cloud: Provisioner) -> list[Instance]:
    """All boxes of the account that are not gone: COMPLETE, or an error."""
    return [row for row in cloud.instances() if row.state is not InstanceState.GONE]


def disks_of(cloud: Provisioner) -> list[Instance]:
    """What else bills there: COMPLETE, or an error."""
    rows = cloud.other_holdings() if isinstance(cloud, HoldsMore) else []
    return [row for row in rows if row.state is not InstanceState.GONE]


def known_of(journal: "Journal", rows: Sequence[Instance]) -> Known:
    """All that the journal has which may be one of these rows."""
    attempts = journal.attempts
    found = attempts.find([row.label for row in rows])
    for provider in {row.provider for row in rows}:
        found |= {attempt.label: attempt for attempt in attempts.live(provider)}
    return known_by(journal.owner.ensure()[0], found.values())


def known_by(owner_id: str, attempts: Iterable[Attempt]) -> Known:
    """The same of what was read of it."""
    claims = (
        Claim(a.provider, a.label, a.state, a.instance_id, a.created_at, a.sent_at)
        for a in attempts
    )
    return Known(owner_id, tuple(claims))


def known_by_blackbox(blackbox: BlackBox) -> Known:
    """The same where the journal cannot be read."""
    owner_id, _machine = blackbox.header() or ("", "")
    entries = blackbox.read().values()
    claims = (Claim(e.provider, e.label, e.state, e.instance_id) for e in entries)
    return Known(owner_id, tuple(claims))


def orphans_among(
    rows: Iterable[Instance], account_id: str, known: Known, kind: str = "box"
) -> list[Orphan]:
    """Those rows that no timer covers, and whose they are."""
    return [
        Orphan(row, account_id, kind, _whose(row, known))
        for row in rows
        if covering(row, known.claims) is None
    ]


def covering(row: Instance, claims: Sequence[Claim]) -> Claim | None:
    """The label of ours whose timer ends this very box; None if there is none."""
    for claim in claims:
        if claim.provider != row.provider or claim.state in SETTLED:
            continue
        if is_box_of(row, claim.label, claim.instance_id, claim.created_at, claim.sent_at):
            return claim
    return None


def owner_of(label: str) -> str:
    """The owner id in a label of gpurun's; empty in any other."""
    found = LABEL.fullmatch(label)
    return found[1] if found else ""


def document(orphan: Orphan) -> dict[str, Any]:
    """As docs/json.md has it."""
    row, rate = orphan.row, orphan.row.usd_per_hour
    return {
        "provider": row.provider,
        "account_id": orphan.account_id,
        "instance_id": row.id,
        "label": row.label,
        "usd_per_hour": None if rate is None else format(rate, "f"),
        "kind": orphan.kind,
        "state": row.state.value,
        "whose": orphan.whose.value,
        "owner_id": orphan.owner_id or None,
        "created_at": None if row.created_at is None else _iso(row.created_at),
    }


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _whose(row: Instance, known: Known) -> Whose:
    claims = [claim for claim in known.claims if claim.provider == row.provider]
    named = [claim for claim in claims if row.label and claim.label == row.label]
    if any(claim.instance_id in (None, row.id) for claim in named):
        return Whose.OURS
    if named:  # a request was repeated on its way and bought twice, or the label is borrowed
        return Whose.PROBABLY_OURS if _came_after(row, named) else Whose.FOREIGN
    if owner := owner_of(row.label):
        return Whose.OURS if owner == known.owner_id else Whose.OTHER_OWNER
    unresolved = [c for c in claims if c.state in UNRESOLVED and c.instance_id is None]
    if not row.label and _came_after(row, unresolved):
        return Whose.PROBABLY_OURS
    return Whose.FOREIGN


def _came_after(row: Instance, claims: Iterable[Claim]) -> bool:
    """Whether it may be what one of these was sent for."""
    return any(claim.sent_at is not None and came_after(row, claim.sent_at) for claim in claims)
