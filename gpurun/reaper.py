"""Ends what outlived its timer, and gathers the evidence that it is gone.

No sleep, no clock of its own, and no writable journal: whoever calls decides when the next round is
due and where the evidence is kept (protocol I8).
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from gpurun.atonce import Heard, ask_each
from gpurun.clock import Clock
from gpurun.errors import ProviderError
from gpurun.identity import age, twins_among
from gpurun.model import Instance, InstanceState
from gpurun.proof import Evidence, Lookup, Verdict, listing, of_death
from gpurun.provider import EndsMany, Provisioner

Answer = TypeVar("Answer")

LOOK_S = 1.0  # before a DELETE, whether the id is still ours: no longer than this


@dataclass(frozen=True, slots=True)
class Holdings:
    """One COMPLETE list, for as many proofs as it may serve; `began_s` is before it was asked."""

    account: str
    began_s: float
    rows: Sequence[Instance]


def pursue(evidence: Evidence, cloud: Provisioner, clock: Clock) -> tuple[Evidence, Verdict]:
    """One round for one box: ask for the end unless that is acknowledged, then look.

    Every answer counts only under the account that was asked about it.  ProviderError: the
    provider could not be asked; the evidence from before still stands.
    """
    evidence = ask(evidence, cloud, clock)
    return look(evidence, holdings(cloud, clock), cloud, clock)


def ask(evidence: Evidence, cloud: Provisioner, clock: Clock) -> Evidence:
    """Ask for the end, unless that is acknowledged or the id is not its own (K4)."""
    if evidence.acked_s is not None or evidence.instance_id is None:
        return evidence
    _require(evidence, cloud, cloud.account())
    heard = _at_once(lambda: cloud.instance(str(evidence.instance_id)), cloud, clock)
    row = heard.answer
    if row is not None and not evidence.is_of(row):
        return evidence
    if heard.trouble is not None and _is_anothers(evidence, cloud, clock):
        return evidence
    cloud.destroy(evidence.instance_id)
    seen = evidence.seen or (row is not None and row.state is not InstanceState.GONE)
    evidence = replace(evidence, seen=seen)
    return evidence.acknowledged(clock.boot_s())


def ask_for_many(many: Sequence[Evidence], cloud: Provisioner, clock: Clock) -> list[Evidence]:
    """One request for all of them, each known to be its own; as they were where none can be made.

    ProviderError: nothing is known of any of them.
    """
    account = cloud.account()
    ids = [each.instance_id for each in many if each.account == account and each.instance_id]
    if not isinstance(cloud, EndsMany) or not ids:
        return list(many)
    cloud.destroy_many(ids)
    at_s, asked = clock.boot_s(), set(ids)
    return [each.acknowledged(at_s) if each.instance_id in asked else each for each in many]


def holdings(cloud: Provisioner, clock: Clock) -> Holdings:
    """A complete list, under the account that answers now."""
    account, began_s = cloud.account(), clock.boot_s()
    return Holdings(account, began_s, cloud.instances())


def look(
    evidence: Evidence, held: Holdings, cloud: Provisioner, clock: Clock
) -> tuple[Evidence, Verdict]:
    """What a list that began after the DELETE was acknowledged, and the row by id, come to."""
    _require(evidence, cloud, held.account)
    evidence, row = _compare(evidence, held, cloud, clock)
    if row is not None:
        # The word of a DELETE is not believed: ask again.  A lost answer's id is learnt here.
        evidence = replace(evidence, instance_id=row.id, acked_s=None)
        if evidence.created_at is None and row.label == evidence.label:
            evidence = replace(evidence, created_at=row.created_at)
        return evidence, Verdict(False, f"{row.label} (instance {row.id}) is still listed")
    traits = cloud.traits
    return evidence, of_death(evidence, traits.proof_gap_s, unseen_span_s=traits.settle_window_s)


def _require(evidence: Evidence, cloud: Provisioner, account: str) -> None:
    if account != evidence.account:
        raise ProviderError(
            f"{cloud.name} answers for account {account}, {evidence.label} was bought by "
            f"{evidence.account}: use the key of that account, then `gpurun kill` again"
        )


def _is_anothers(evidence: Evidence, cloud: Provisioner, clock: Clock) -> bool:
    """Whether a list says so: the id was given to another box."""
    rows = _at_once(cloud.instances, cloud, clock).answer or []
    return any(row.id == evidence.instance_id and not evidence.is_of(row) for row in rows)


def _at_once(question: Callable[[], Answer], cloud: Provisioner, clock: Clock) -> Heard[Answer]:
    """What cannot be known at once keeps no box alive, nor a row that an adapter cannot read."""
    try:
        [heard] = ask_each([cloud.name], lambda _name: question(), clock, LOOK_S)
    except Exception as error:
        return Heard(cloud.name, trouble=ProviderError(f"{cloud.name}: {error!r}"))
    return heard


def _compare(
    evidence: Evidence, held: Holdings, cloud: Provisioner, clock: Clock
) -> tuple[Evidence, Instance | None]:
    """A complete list, and the row by id; the row that is still there, if one is."""
    rows = [row for row in held.rows if evidence.is_of(row)]
    evidence = evidence.plus(listing(held.account, held.began_s, rows))
    if alive := [row for row in rows if row.state is not InstanceState.GONE]:
        its_own = min(alive, key=age)
        _end_twins(its_own, twins_of(evidence, held.rows), cloud)
        return evidence, its_own
    if evidence.instance_id is None:
        return evidence, None
    began_s = clock.boot_s()
    found = cloud.instance(evidence.instance_id)
    if found is not None and (found.state is InstanceState.GONE or not evidence.is_of(found)):
        found = None
    return evidence.plus(Lookup(held.account, began_s, found is not None)), found


def _end_twins(its_own: Instance, twins: Iterable[Instance], cloud: Provisioner) -> None:
    """Its own is ended by its id from the next round on; with a twin that cannot be ended, now: no
    id is known then, so that a keeper that starts anew forgets neither.

    ProviderError: one could not be.
    """
    failed = None
    for twin in twins:
        try:
            cloud.destroy(twin.id)
        except ProviderError as error:
            failed = error
    if failed is not None:
        with suppress(ProviderError):
            cloud.destroy(its_own.id)
        raise failed


def twins_of(evidence: Evidence, rows: Sequence[Instance]) -> list[Instance]:
    """Of several that a request may have made whose answer was lost, all but the oldest: they end
    at once.  None where its own id is known.
    """
    if evidence.instance_id is not None:
        return []
    alive = [row for row in rows if evidence.is_of(row) and row.state is not InstanceState.GONE]
    return twins_among(sorted(alive, key=age)[1:], evidence.sent_at)
