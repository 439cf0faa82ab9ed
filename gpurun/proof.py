"""Is it gone, on this evidence?  The one function that may say so (protocol 3, PROOF).

Pure.  Times are seconds of this boot's boot clock, taken before the question was sent.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from gpurun.identity import is_box_of
from gpurun.model import Instance, InstanceState

OUTSIDE = "ended outside gpurun"


@dataclass(frozen=True, slots=True)
class Listing:
    """One COMPLETE list of an account; an incomplete one raises and is never made into this."""

    account: str
    began_s: float
    ids: frozenset[str]
    labels: frozenset[str]


@dataclass(frozen=True, slots=True)
class Lookup:
    """The provider's word on our one instance, asked by id."""

    account: str
    began_s: float
    found: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that was asked and answered about the end of one attempt, within one boot."""

    account: str  # the purchase's
    label: str
    instance_id: str | None
    acked_s: float | None = None  # when DELETE was acknowledged, or the row said terminated
    listings: tuple[Listing, ...] = ()
    lookups: tuple[Lookup, ...] = ()
    seen: bool = False  # the journal says it was listed before these answers
    boot_id: str = ""
    created_at: datetime | None = None  # by the provider
    sent_at: datetime | None = None

    def is_of(self, row: Instance) -> bool:
        """Whether this row is the box that this is about."""
        return is_box_of(row, self.label, self.instance_id, self.created_at, self.sent_at)

    def acknowledged(self, at_s: float) -> "Evidence":
        """DELETE was acknowledged; only the first time counts, or retries would defer the proof."""
        return self if self.acked_s is not None else replace(self, acked_s=at_s)

    def plus(self, answer: Listing | Lookup) -> "Evidence":
        """With one more answer; what can no longer matter is dropped, however long this goes on."""
        if isinstance(answer, Listing):
            return _slim(replace(self, listings=(*self.listings, answer)))
        return _slim(replace(self, lookups=(*self.lookups, answer)))

    def to_json(self) -> str:
        return json.dumps(
            {
                "account": self.account,
                "label": self.label,
                "instance_id": self.instance_id,
                "acked_s": self.acked_s,
                "seen": self.seen,
                "boot_id": self.boot_id,
                "listings": [
                    [each.account, each.began_s, sorted(each.ids), sorted(each.labels)]
                    for each in self.listings
                ],
                "lookups": [[each.account, each.began_s, each.found] for each in self.lookups],
            }
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """Gone or not, and one sentence that says what proves it or what is missing."""

    gone: bool
    why: str
    outside: bool = False  # gone, and nobody here asked for it


def listing(account: str, began_s: float, instances: Iterable[Instance]) -> Listing:
    """A complete list as evidence: a terminated row counts as absent, an ending one does not."""
    rows = [each for each in instances if each.state is not InstanceState.GONE]
    return Listing(
        account, began_s, frozenset(r.id for r in rows), frozenset(r.label for r in rows)
    )


def of_death(
    evidence: Evidence,
    gap_s: float,
    *,
    unacked_span_s: float = 60.0,
    unseen_span_s: float = 0.0,
) -> Verdict:
    """Gone by PROOF, or not yet.

    gap_s           least time between two lists without it, after an acknowledged DELETE
    unacked_span_s  least time over three such lists when no DELETE was acknowledged
    unseen_span_s   least time over the lists when none has ever shown it (the settle window)
    """
    if evidence.instance_id is None:
        return Verdict(False, "its id is not known, and absence of the unseen proves nothing")
    sighted_s = _last_sighting_s(evidence)
    seen = evidence.seen or sighted_s is not None
    acked = evidence.acked_s is not None
    if not acked and not seen:
        return Verdict(False, "it was never listed and no DELETE was acknowledged")

    absent_s = _absences_s(evidence, sighted_s)
    needed = 2 if acked else 3
    span_s = gap_s if acked else unacked_span_s
    if not seen:
        span_s = max(span_s, unseen_span_s)
    after = "after the acknowledged DELETE" if acked else "without an acknowledged DELETE"
    if not absent_s:
        return Verdict(False, _nothing_absent(evidence, sighted_s, after))
    if len(absent_s) < needed or absent_s[-1] - absent_s[0] < span_s:
        return Verdict(
            False,
            f"{len(absent_s)} complete list(s) without it over "
            f"{absent_s[-1] - absent_s[0]:.0f} s {after}; needed are {needed} over {span_s:.0f} s",
        )
    if not _lookup_says_gone(evidence, sighted_s):
        return Verdict(False, "lists lack it, but no lookup by id has said since that it is gone")
    proof = (
        f"{len(absent_s)} complete lists over {absent_s[-1] - absent_s[0]:.0f} s {after} "
        "and a lookup by id say that it is gone"
    )
    return Verdict(True, proof if acked else f"{OUTSIDE}: {proof}", outside=not acked)


def _absences_s(evidence: Evidence, sighted_s: float | None) -> list[float]:
    """When the lists began that count: ours, after the acknowledgement and the last sighting."""
    return sorted(
        {
            each.began_s
            for each in evidence.listings
            if _counts(evidence, each, sighted_s) and not _shows(evidence, each)
        }
    )


def _lookup_says_gone(evidence: Evidence, sighted_s: float | None) -> bool:
    return any(not each.found and _counts(evidence, each, sighted_s) for each in evidence.lookups)


def _counts(evidence: Evidence, answer: Listing | Lookup, sighted_s: float | None) -> bool:
    return (
        answer.account == evidence.account
        and (evidence.acked_s is None or answer.began_s >= evidence.acked_s)
        and (sighted_s is None or answer.began_s > sighted_s)
    )


def _last_sighting_s(evidence: Evidence) -> float | None:
    answers: tuple[Listing | Lookup, ...] = evidence.listings + evidence.lookups
    return max(
        (
            each.began_s
            for each in answers
            if each.account == evidence.account and _shows(evidence, each)
        ),
        default=None,
    )


def _shows(evidence: Evidence, answer: Listing | Lookup) -> bool:
    if isinstance(answer, Lookup):
        return answer.found
    return evidence.label in answer.labels or evidence.instance_id in answer.ids


def _nothing_absent(evidence: Evidence, sighted_s: float | None, after: str) -> str:
    foreign = {each.account for each in evidence.listings if each.account != evidence.account}
    if sighted_s is not None and sighted_s >= (evidence.acked_s or 0.0):
        return f"still listed {after}"
    if foreign:
        return f"only lists of another account ({', '.join(sorted(foreign))}), which prove nothing"
    return f"no complete list {after} yet"


def _slim(evidence: Evidence) -> Evidence:
    """First and last two absences, last sighting, last lookup: all that a verdict can rest on."""
    sighted_s = _last_sighting_s(evidence)
    ours = [each for each in evidence.listings if each.account == evidence.account]
    shown = [each for each in ours if _shows(evidence, each)]
    # Two of one instant count as one.
    by_time = {
        each.began_s: each
        for each in ours
        if not _shows(evidence, each) and _counts(evidence, each, sighted_s)
    }
    absent = [by_time[began_s] for began_s in sorted(by_time)]
    foreign = [each for each in evidence.listings if each.account != evidence.account]
    listings = (
        *sorted(shown, key=lambda each: each.began_s)[-1:],
        *absent[:1],
        *absent[1:][-2:],
        *foreign[-1:],
    )
    lookups = [
        each
        for each in sorted(evidence.lookups, key=lambda each: each.began_s)
        if each.account == evidence.account and (each.found or _counts(evidence, each, sighted_s))
    ]
    return replace(
        evidence,
        listings=listings,
        lookups=(*[e for e in lookups if e.found][-1:], *[e for e in lookups if not e.found][-1:]),
        seen=evidence.seen or sighted_s is not None,
    )
