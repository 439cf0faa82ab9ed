"""What the accounts hold that no timer of ours covers; ended only by id, by a human.

The id alone is gone by: a label of somebody else may be borne by several boxes, or by none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from gpurun.atonce import ask_each
from gpurun.blackbox import BlackBox
from gpurun.clock import Clock
from gpurun.errors import ProviderError, StillBilling, UsageError
from gpurun.holdings import (
    Known,
    Orphan,
    covering,
    disks_of,
    known_by_blackbox,
    known_of,
    orphans_among,
    rows_of,
)
from gpurun.model import Instance, InstanceState
from gpurun.places import Places
from gpurun.proof import Evidence, Listing, Lookup, Verdict, of_death
from gpurun.provider import Prepaid, Provisioner
from gpurun.settings import Settings
from gpurun.store import Journal, StoreError
from gpurun.wiring import names, provisioner

ANSWER_WITHIN_S = 15.0
UNPROVEN_AFTER_S = 60.0
RETRY_S = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why something that may bill is perhaps not shown."""

    provider: str  # or "journal"
    why: str


@dataclass(frozen=True, slots=True)
class Wallet:
    """What an account has left to spend."""

    credit_usd: Decimal
    read_at: datetime


@dataclass(frozen=True, slots=True)
class Survey:
    """Every account as it is now; with `troubles` it is not the whole of it."""

    orphans: tuple[Orphan, ...]
    troubles: tuple[Trouble, ...]
    wallets: dict[tuple[str, str], Wallet]  # by provider and account, of those that tell


@dataclass(frozen=True, slots=True)
class _Account:
    account_id: str
    boxes: tuple[Instance, ...]
    disks: tuple[Instance, ...]
    trouble: str
    credit_usd: Decimal | None


def orphans(
    settings: Settings,
    clock: Clock,
    providers: Sequence[str] | None = None,
    *,
    within_s: float = ANSWER_WITHIN_S,
) -> Survey:
    """All accounts at once.  One that cannot be asked is a trouble, and hides no other."""
    heard = ask_each(
        names(settings) if providers is None else providers,
        lambda name: _account(provisioner(name, settings, clock)),
        clock,
        within_s,
    )
    known, troubles = _known(settings, clock, [row for h in heard for row in _rows(h.answer)])
    found: list[Orphan] = []
    wallets: dict[tuple[str, str], Wallet] = {}
    for each in heard:
        if each.answer is None:
            troubles.append(Trouble(each.provider, str(each.trouble)))
            continue
        account = each.answer
        found += orphans_among(account.boxes, account.account_id, known)
        found += orphans_among(account.disks, account.account_id, known, "disk")
        if account.trouble:
            troubles.append(Trouble(each.provider, account.trouble))
        if account.credit_usd is not None:
            wallets[each.provider, account.account_id] = Wallet(account.credit_usd, clock.now())
    return Survey(tuple(found), tuple(troubles), wallets)


def end_orphan(
    orphan: Orphan, settings: Settings, clock: Clock, say: Callable[[str], None]
) -> None:
    """DELETE and PROOF of what a human has named.

    UsageError: it is no longer what was named, nothing was done.  StillBilling: not proven gone
    within a minute.
    """
    cloud = provisioner(orphan.row.provider, settings, clock)
    _require_the_same(orphan, cloud, settings, clock)
    evidence = Evidence(orphan.account_id, "", orphan.row.id, seen=True, boot_id=clock.boot_id)
    began_s, rounds, said = clock.boot_s(), 0, ""
    while True:
        try:
            evidence, verdict = _round(evidence, orphan, cloud, clock)
        except ProviderError as error:
            verdict = Verdict(False, str(error))
        if verdict.gone:
            return
        if verdict.why != said:
            said = verdict.why
            say(f"{_called(orphan)}: {said}")
        wait_s = RETRY_S[min(rounds, len(RETRY_S) - 1)]
        if evidence.acked_s is not None:
            wait_s = max(wait_s, cloud.traits.proof_gap_s)
        if clock.boot_s() + wait_s - began_s > UNPROVEN_AFTER_S + cloud.traits.proof_gap_s:
            raise StillBilling(
                f"{_called(orphan)} may still bill{_at(orphan)}: {verdict.why}. Run "
                f"`gpurun orphans --kill {orphan.row.id}` again, or end it in the provider's "
                "console"
            )
        clock.sleep(wait_s)
        rounds += 1


def _account(cloud: Provisioner) -> _Account:
    """Boxes that cannot be listed are an error, disks that cannot be a trouble beside them."""
    account_id, boxes = cloud.account(), rows_of(cloud)
    disks: list[Instance] = []
    trouble, credit_usd = "", None
    try:
        disks = disks_of(cloud)
    except ProviderError as error:
        trouble = f"disks that bill without a box are not shown: {error}"
    try:
        credit_usd = cloud.credit_usd() if isinstance(cloud, Prepaid) else None
    except ProviderError:
        credit_usd = None  # `doctor` says why
    return _Account(account_id, tuple(boxes), tuple(disks), trouble, credit_usd)


def _rows(account: _Account | None) -> tuple[Instance, ...]:
    return () if account is None else account.boxes + account.disks


def _known(
    settings: Settings, clock: Clock, rows: Sequence[Instance]
) -> tuple[Known, list[Trouble]]:
    """By the journal; what it cannot tell, by the black box."""
    places = Places(settings.state_dir)
    if not places.database.exists():
        return Known(), []
    try:
        journal = Journal(places.database, clock)
        try:
            return known_of(journal, rows), []
        finally:
            journal.close()
    except StoreError as error:
        trouble = Trouble("journal", str(error))
    try:
        return known_by_blackbox(BlackBox(places.blackbox, "", "")), [trouble]
    except OSError as error:
        return Known(), [trouble, Trouble("journal", f"nor {places.blackbox}: {error}")]


def _require_the_same(orphan: Orphan, cloud: Provisioner, settings: Settings, clock: Clock) -> None:
    """Between the list and the answer to a question it may have ended, or become a run's."""
    rows = disks_of(cloud) if orphan.kind == "disk" else rows_of(cloud)
    found = [row for row in rows if row.id == orphan.row.id]
    same = [
        row
        for row in found
        if (row.label, row.created_at) == (orphan.row.label, orphan.row.created_at)
    ]
    if not same or cloud.account() != orphan.account_id:
        raise UsageError(
            f"{_called(orphan)} is not there any more, or another thing by now: nothing was done. "
            "Run `gpurun orphans`"
        )
    known, _ = _known(settings, clock, same)
    if covering(same[0], known.claims) is not None:
        raise UsageError(
            f"{_called(orphan)} is the box of a run now: nothing was done. `gpurun status` shows it"
        )


def _round(
    evidence: Evidence, orphan: Orphan, cloud: Provisioner, clock: Clock
) -> tuple[Evidence, Verdict]:
    """Ask for the end unless that is acknowledged, then list, then look it up by id."""
    instance_id, account = orphan.row.id, cloud.account()
    if account != evidence.account:
        raise ProviderError(f"{cloud.name} answers for another account, {account}, all of a sudden")
    if evidence.acked_s is None:
        cloud.destroy(instance_id)
        evidence = evidence.acknowledged(clock.boot_s())
    began_s = clock.boot_s()
    rows = disks_of(cloud) if orphan.kind == "disk" else rows_of(cloud)
    ids = frozenset(row.id for row in rows)
    evidence = evidence.plus(Listing(account, began_s, ids, frozenset()))
    began_s = clock.boot_s()
    row = cloud.instance(instance_id)
    found = row is not None and row.state is not InstanceState.GONE
    evidence = evidence.plus(Lookup(account, began_s, found))
    if found or instance_id in ids:  # the word of a DELETE is not believed: ask again
        state = f", {row.state.value}" if row is not None and found else ""
        return replace(evidence, acked_s=None), Verdict(False, f"it is still there{state}")
    return evidence, of_death(evidence, cloud.traits.proof_gap_s)


def _called(orphan: Orphan) -> str:
    return f"{orphan.row.provider} {orphan.row.id}"


def _at(orphan: Orphan) -> str:
    rate = orphan.row.usd_per_hour
    return "" if rate is None else f" ${rate}/h"
