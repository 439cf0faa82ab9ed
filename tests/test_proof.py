"""Proof of death: every lie a list can tell, and a second opinion on random evidence."""

import json
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpurun.model import Instance, InstanceState
from gpurun.proof import Evidence, Listing, Lookup, listing, of_death

US, OTHERS = "account-7", "account-8"
LABEL, ID = "gpurun-a-b-c", "812"
GAP_S = 20.0
BOUGHT = Evidence(account=US, label=LABEL, instance_id=ID, seen=True)
ENDED = replace(BOUGHT, acked_s=100.0)


def absent(began_s: float, account: str = US) -> Listing:
    return Listing(account, began_s, frozenset({"5"}), frozenset({"someone-else"}))


def empty(began_s: float, account: str = US) -> Listing:
    return Listing(account, began_s, frozenset(), frozenset())


def shown(began_s: float, *, by: str = "both", account: str = US) -> Listing:
    ids = frozenset({ID} if by != "label" else {"9"})
    labels = frozenset({LABEL} if by != "id" else {""})
    return Listing(account, began_s, ids, labels)


def no(began_s: float, account: str = US) -> Lookup:
    return Lookup(account, began_s, found=False)


def yes(began_s: float, account: str = US) -> Lookup:
    return Lookup(account, began_s, found=True)


def after(evidence: Evidence, *answers: Listing | Lookup) -> Evidence:
    return replace(
        evidence,
        listings=evidence.listings + tuple(a for a in answers if isinstance(a, Listing)),
        lookups=evidence.lookups + tuple(a for a in answers if isinstance(a, Lookup)),
    )


def test_acknowledged_delete_two_lists_20_s_apart_and_a_lookup_prove_it() -> None:
    verdict = of_death(after(ENDED, absent(101), absent(121), no(122)), GAP_S)
    assert verdict.gone
    assert not verdict.outside
    assert verdict.why == (
        "2 complete lists over 20 s after the acknowledged DELETE and a lookup by id say that "
        "it is gone"
    )


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ((), "no complete list after the acknowledged DELETE yet"),
        ((absent(101), no(102)), "1 complete list(s) without it over 0 s"),
        ((absent(101), absent(120), no(121)), "over 19 s after the acknowledged DELETE; needed"),
        ((absent(101), absent(101), no(121)), "1 complete list(s)"),
        ((absent(101), absent(121)), "no lookup by id"),
        ((absent(99), absent(121), no(122)), "1 complete list(s)"),
        ((absent(101), absent(121), no(99)), "no lookup by id"),
        ((absent(101), absent(121), yes(122)), "still listed after the acknowledged DELETE"),
        ((absent(101), no(102), shown(122)), "still listed after the acknowledged DELETE"),
        ((absent(101), shown(111), absent(121), no(122)), "1 complete list(s)"),
        ((no(102), shown(111), absent(121), absent(141)), "no lookup by id"),
        ((absent(101), absent(121, OTHERS), no(122)), "1 complete list(s)"),
        ((absent(101), absent(121), no(122, OTHERS)), "no lookup by id"),
        ((empty(101, OTHERS), empty(121, OTHERS), no(122, OTHERS)), "only lists of another"),
        ((empty(101), empty(121)), "no lookup by id"),
        ((empty(101), empty(121), yes(122)), "still listed"),
    ],
)
def test_anything_less_is_not_proof(answers: tuple[Listing | Lookup, ...], why: str) -> None:
    verdict = of_death(after(ENDED, *answers), GAP_S)
    assert not verdict.gone
    assert why in verdict.why


@pytest.mark.parametrize("by", ["id", "label", "both"])
def test_its_id_alone_or_its_label_alone_in_a_list_means_that_it_lives(by: str) -> None:
    evidence = after(ENDED, absent(101), no(102), shown(121, by=by), no(122))
    assert not of_death(evidence, GAP_S).gone


def test_a_list_of_another_account_neither_kills_nor_revives() -> None:
    proven = after(ENDED, absent(101), absent(121), no(122))
    assert of_death(after(proven, shown(123, account=OTHERS), yes(124, OTHERS)), GAP_S).gone


def test_back_in_the_list_after_the_proof_it_bills_again() -> None:
    proven = after(ENDED, absent(101), absent(121), no(122))
    assert not of_death(after(proven, shown(722)), GAP_S).gone


def test_absence_without_an_acknowledged_delete_takes_three_lists_over_60_s() -> None:
    two = after(BOUGHT, absent(0), absent(60), no(61))
    assert not of_death(two, GAP_S).gone
    short = after(BOUGHT, absent(0), absent(30), absent(59), no(61))
    assert not of_death(short, GAP_S).gone
    verdict = of_death(after(two, absent(30)), GAP_S)
    assert verdict.gone
    assert verdict.outside
    assert verdict.why.startswith("ended outside gpurun: 3 complete lists over 60 s")
    assert of_death(short, GAP_S, unacked_span_s=59).gone
    assert not of_death(after(BOUGHT, absent(0), absent(30), absent(60)), GAP_S).gone


def test_absence_before_the_first_sighting_proves_nothing() -> None:
    lists = (absent(0), absent(60), absent(600), no(601))
    unseen = replace(BOUGHT, seen=False)
    assert not of_death(after(unseen, *lists), GAP_S).gone
    unknown = replace(ENDED, instance_id=None, acked_s=0.0)
    assert of_death(after(unknown, *lists), GAP_S).why == (
        "its id is not known, and absence of the unseen proves nothing"
    )


def test_a_box_no_list_has_ever_shown_must_be_absent_for_the_settle_window() -> None:
    unseen = after(replace(ENDED, seen=False), absent(101), absent(121), no(122))
    assert of_death(unseen, GAP_S).gone
    assert not of_death(unseen, GAP_S, unseen_span_s=120).gone
    assert of_death(after(unseen, absent(221)), GAP_S, unseen_span_s=120).gone
    assert of_death(after(unseen, shown(50)), GAP_S, unseen_span_s=120).gone


def test_a_terminated_row_counts_as_absent_and_an_ending_one_does_not() -> None:
    rows = [
        Instance("prime", name, f"label-{name}", state, None, None)
        for name, state in [
            ("1", InstanceState.GONE),
            ("2", InstanceState.ENDING),
            ("3", InstanceState.UNKNOWN),
        ]
    ]
    assert listing(US, 5.0, rows) == Listing(
        US, 5.0, frozenset({"2", "3"}), frozenset({"label-2", "label-3"})
    )


def test_asking_again_for_its_end_does_not_defer_the_proof() -> None:
    assert ENDED.acknowledged(150.0).acked_s == 100.0
    assert BOUGHT.acknowledged(150.0).acked_s == 150.0


answers = st.one_of(
    st.builds(
        lambda make, at_s, account: make(float(at_s), account=account),
        st.sampled_from([absent, empty, shown, no, yes, absent, no]),
        st.integers(0, 90),
        st.sampled_from([US, US, US, OTHERS]),
    )
)
evidences = st.builds(
    lambda each, acked_s, seen: after(replace(BOUGHT, acked_s=acked_s, seen=seen), *each),
    st.lists(answers, max_size=9),
    st.none() | st.integers(0, 60).map(float),
    st.booleans(),
)


@settings(max_examples=1500)
@example(after(ENDED, absent(101), absent(121), no(122)))
@given(evidences)
def test_gone_is_said_exactly_when_a_plain_reading_of_the_rule_says_it(evidence: Evidence) -> None:
    assert of_death(evidence, GAP_S, unacked_span_s=40).gone == _by_the_letter(evidence)


def _by_the_letter(evidence: Evidence) -> bool:
    ours = _ours(evidence)
    sightings = [each.began_s for each in ours if _says_alive(each)]
    if evidence.acked_s is None and not (evidence.seen or sightings):
        return False
    denials = [
        each
        for each in ours
        if not _says_alive(each)
        and each.began_s >= (evidence.acked_s or 0.0)
        and all(seen_s < each.began_s for seen_s in sightings)
    ]
    lists_s = {each.began_s for each in denials if isinstance(each, Listing)}
    size, span_s = (2, GAP_S) if evidence.acked_s is not None else (3, 40)
    return any(isinstance(each, Lookup) for each in denials) and any(
        max(some) - min(some) >= span_s for some in combinations(lists_s, size)
    )


def _ours(evidence: Evidence) -> list[Listing | Lookup]:
    return [each for each in (*evidence.listings, *evidence.lookups) if each.account == US]


def _says_alive(answer: Listing | Lookup) -> bool:
    return answer.found if isinstance(answer, Lookup) else LABEL in answer.labels


@given(evidences)
def test_the_order_in_which_answers_arrive_changes_nothing(evidence: Evidence) -> None:
    mixed = replace(
        evidence,
        listings=tuple(reversed(evidence.listings)),
        lookups=tuple(reversed(evidence.lookups)),
    )
    assert of_death(mixed, GAP_S) == of_death(evidence, GAP_S)


@settings(max_examples=500)
@given(
    st.lists(st.integers(1, 15), min_size=1, max_size=12),
    st.lists(st.booleans(), min_size=12, max_size=12),
    st.none() | st.integers(0, 60).map(float),
)
def test_a_living_box_that_flickers_for_less_than_the_gap_is_never_gone(
    steps_s: list[int], lies: list[bool], acked_s: float | None
) -> None:
    """Lists and lookups lie in streaks shorter than the gap; the truth comes in between."""
    evidence, at_s, lying_since_s = replace(BOUGHT, acked_s=acked_s), 0.0, None
    for step_s, lie in zip(steps_s, lies, strict=False):
        at_s += step_s
        lying_since_s = (lying_since_s or at_s) if lie else None
        if lying_since_s is not None and at_s - lying_since_s < GAP_S:
            evidence = after(evidence, absent(at_s), no(at_s + 0.5))
        else:
            evidence, lying_since_s = after(evidence, shown(at_s), yes(at_s + 0.5)), None
        assert not of_death(evidence, GAP_S).gone


@settings(max_examples=500)
@given(evidences, st.integers(91, 99))
def test_one_more_sighting_always_revives(evidence: Evidence, at_s: int) -> None:
    for sighting in (shown(at_s), yes(at_s), shown(at_s, by="id"), shown(at_s, by="label")):
        assert not of_death(after(evidence, sighting), GAP_S).gone


@settings(max_examples=500)
@given(evidences)
def test_what_is_dropped_on_the_way_changes_no_verdict(evidence: Evidence) -> None:
    """Answers come in the order in which they were asked for."""
    grown = replace(evidence, listings=(), lookups=())
    for answer in sorted((*evidence.listings, *evidence.lookups), key=lambda each: each.began_s):
        grown = grown.plus(answer)
    assert len(grown.listings) <= 5
    assert len(grown.lookups) <= 2
    assert of_death(grown, GAP_S).gone == of_death(evidence, GAP_S).gone
    assert grown.seen == (evidence.seen or any(map(_says_alive, _ours(evidence))))


def test_three_lists_without_an_acknowledgement_are_kept_among_many() -> None:
    evidence = BOUGHT
    for at_s in (0, 55, 61, 62):
        evidence = evidence.plus(absent(at_s))
    assert of_death(evidence.plus(no(63)), GAP_S).gone


@given(evidences)
def test_evidence_is_kept_whole_in_the_journal(evidence: Evidence) -> None:
    kept = json.loads(evidence.to_json())
    assert (kept["label"], kept["acked_s"]) == (LABEL, evidence.acked_s)
    assert len(kept["listings"]) == len(evidence.listings)
    assert len(kept["lookups"]) == len(evidence.lookups)
