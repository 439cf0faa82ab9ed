"""Ends what outlived its timer, and gathers the evidence that it is gone.

No sleep, no clock of its own, and no writable journal: whoever calls decides when the next round is
due and where the evidence is kept (protocol I8).
"""

from dataclasses import replace

from gpurun.atonce import ask_each
from gpurun.clock import Clock
from gpurun.errors import ProviderError
from gpurun.identity import age, twins_among
from gpurun.model import Instance, InstanceState
from gpurun.proof import Evidence, Lookup, Verdict, listing, of_death
from gpurun.provider import Provisioner

LOOK_S = 1.0  # before a DELETE, whether the id is still ours: no longer than this


def pursue(evidence: Evidence, cloud: Provisioner, clock: Clock) -> tuple[Evidence, Verdict]:
    """One round: ask for the end unless that is acknowledged, then look.

    Every answer counts only under the account that was asked about it.  ProviderError: the
    provider could not be asked; the evidence from before still stands.
    """
    account = cloud.account()
    if account != evidence.account:
        raise ProviderError(
            f"{cloud.name} answers for account {account}, {evidence.label} was bought by "
            f"{evidence.account}: use the key of that account, then `gpurun kill` again"
        )
    if evidence.acked_s is None and _is_there(evidence, cloud, clock):
        assert evidence.instance_id is not None
        cloud.destroy(evidence.instance_id)
        evidence = evidence.acknowledged(clock.boot_s())
    evidence, row = _look(evidence, cloud, clock, account)
    if row is not None:
        # The word of a DELETE is not believed: ask again.  A lost answer's id is learnt here.
        evidence = replace(evidence, instance_id=row.id, acked_s=None)
        return evidence, Verdict(False, f"{row.label} (instance {row.id}) is still listed")
    traits = cloud.traits
    return evidence, of_death(evidence, traits.proof_gap_s, unseen_span_s=traits.settle_window_s)


def _is_there(evidence: Evidence, cloud: Provisioner, clock: Clock) -> bool:
    """Whether its id is still its own; what cannot be known at once keeps no box alive."""
    if evidence.instance_id is None:
        return False
    instance_id = evidence.instance_id
    try:
        [heard] = ask_each([cloud.name], lambda _name: cloud.instance(instance_id), clock, LOOK_S)
    except Exception:  # a row that an adapter cannot read: nor may that keep a box alive
        return True
    return heard.answer is None or evidence.is_of(heard.answer)


def _look(
    evidence: Evidence, cloud: Provisioner, clock: Clock, account: str
) -> tuple[Evidence, Instance | None]:
    """A complete list, and the row by id; the row that is still there, if one is."""
    began_s = clock.boot_s()
    rows = [row for row in cloud.instances() if evidence.is_of(row)]
    evidence = evidence.plus(listing(account, began_s, rows))
    if alive := [row for row in rows if row.state is not InstanceState.GONE]:
        return evidence, _oldest(alive, evidence, cloud)
    if evidence.instance_id is None:
        return evidence, None
    began_s = clock.boot_s()
    found = cloud.instance(evidence.instance_id)
    if found is not None and (found.state is InstanceState.GONE or not evidence.is_of(found)):
        found = None
    return evidence.plus(Lookup(account, began_s, found is not None)), found


def _oldest(rows: list[Instance], evidence: Evidence, cloud: Provisioner) -> Instance:
    """Of several that a lost request may have made; the others are ended at once."""
    oldest, *others = sorted(rows, key=age)
    for twin in twins_among(others, evidence.sent_at):
        cloud.destroy(twin.id)
    return oldest
