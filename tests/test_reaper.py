"""One round of ending a box, against every lie a cloud in memory can tell."""

import threading
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from gpurun.errors import ProviderError, ProviderUnreachable
from gpurun.model import Instance, Need, Offer, Order
from gpurun.proof import Evidence
from gpurun.reaper import pursue
from tests.fakecloud import FakeClock, FakeCloud

LABEL = "gpurun-owner1-run00001-nonce1"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cloud(clock: FakeClock) -> FakeCloud:
    made = FakeCloud(clock)
    offer = Offer("fake", "1", None, 0, Decimal("1.89"), 10)
    ends_at = clock.now()
    made.create(Order(offer, Need(None, 0, 10), LABEL, ends_at, ends_at, Decimal(10)))
    return made


def evidence(instance_id: str | None = "101") -> Evidence:
    return Evidence("fake-account", LABEL, instance_id, seen=True, boot_id="fake-boot")


def test_a_box_is_gone_only_after_two_lists_with_the_gap_between_them(
    cloud: FakeCloud, clock: FakeClock
) -> None:
    known, verdict = pursue(evidence(), cloud, clock)
    assert not verdict.gone
    clock.advance(19)
    known, verdict = pursue(known, cloud, clock)
    assert not verdict.gone
    clock.advance(1)
    _, verdict = pursue(known, cloud, clock)
    assert verdict.gone
    assert cloud.destroys == ["101"]


def test_a_destroy_that_did_nothing_is_asked_for_again(cloud: FakeCloud, clock: FakeClock) -> None:
    cloud.destroy_does_nothing = True
    known, verdict = pursue(evidence(), cloud, clock)
    assert "still listed" in verdict.why
    cloud.destroy_does_nothing = False
    for _ in range(3):
        clock.advance(20)
        known, verdict = pursue(known, cloud, clock)
    assert verdict.gone
    assert cloud.destroys == ["101", "101"]


def test_an_empty_list_is_not_believed_while_the_row_answers_by_id(
    cloud: FakeCloud, clock: FakeClock
) -> None:
    cloud.destroy_does_nothing = cloud.list_empty = True
    known = evidence()
    for _ in range(5):
        known, verdict = pursue(known, cloud, clock)
        assert not verdict.gone
        clock.advance(60)


def test_another_account_is_refused_before_anything_is_asked_of_it(
    cloud: FakeCloud, clock: FakeClock
) -> None:
    cloud.account_id = "another"
    with pytest.raises(ProviderError, match="another"):
        pursue(evidence(), cloud, clock)
    assert cloud.destroys == []


def test_an_unreachable_provider_proves_nothing(cloud: FakeCloud, clock: FakeClock) -> None:
    known, _ = pursue(evidence(), cloud, clock)
    cloud.unreachable = True
    clock.advance(60)
    with pytest.raises(ProviderUnreachable):
        pursue(known, cloud, clock)


def test_a_box_whose_id_was_never_learnt_is_found_by_its_label_and_ended(
    cloud: FakeCloud, clock: FakeClock
) -> None:
    known, verdict = pursue(replace(evidence(None), seen=False), cloud, clock)
    assert not verdict.gone
    assert known.instance_id == "101"
    for _ in range(3):
        clock.advance(20)
        known, verdict = pursue(known, cloud, clock)
    assert verdict.gone
    assert cloud.boxes == {}


# Whose a row is.


def theirs(cloud: FakeCloud, instance_id: str, label: str, older_s: float) -> None:
    """Somebody else's box in the same account, made so long before ours."""
    made_at = cloud.clock.now() - timedelta(seconds=older_s)
    ours = cloud.boxes["101"]
    cloud.boxes[instance_id] = replace(ours, id=instance_id, label=label, created_at=made_at)


def to_the_end(known: Evidence, cloud: FakeCloud, clock: FakeClock) -> bool:
    for _ in range(8):
        known, verdict = pursue(known, cloud, clock)
        clock.advance(20)
    return verdict.gone


def test_another_box_that_bears_the_label_is_left_alone(cloud: FakeCloud, clock: FakeClock) -> None:
    theirs(cloud, "7", LABEL, older_s=3600)
    assert to_the_end(evidence(), cloud, clock)
    assert (cloud.destroys, list(cloud.boxes)) == (["101"], ["7"])


def test_an_id_that_was_given_again_is_left_alone(cloud: FakeCloud, clock: FakeClock) -> None:
    known = replace(evidence(), created_at=clock.now())
    theirs(cloud, "101", "somebody-elses", older_s=-300)
    assert to_the_end(known, cloud, clock)
    assert cloud.destroys == []


def test_a_label_changed_in_the_console_saves_no_box(cloud: FakeCloud, clock: FakeClock) -> None:
    known = replace(evidence(), created_at=clock.now())
    theirs(cloud, "101", "renamed", older_s=0)
    assert to_the_end(known, cloud, clock)
    assert cloud.destroys == ["101"]


def test_of_what_a_lost_request_has_made_nothing_stays(cloud: FakeCloud, clock: FakeClock) -> None:
    """Its id is not known: all that came after it was sent is its own, what was before is not."""
    known = replace(evidence(None), sent_at=clock.now())
    theirs(cloud, "7", LABEL, older_s=3600)
    theirs(cloud, "102", LABEL, older_s=-5)
    clock.advance(5)
    assert to_the_end(known, cloud, clock)
    assert (sorted(cloud.destroys), list(cloud.boxes)) == (["101", "102"], ["7"])


def test_of_several_boxes_one_without_a_date_is_left_to_a_person(
    cloud: FakeCloud, clock: FakeClock
) -> None:
    known = replace(evidence(None), sent_at=clock.now())
    listed = cloud.boxes["101"]

    class Undated(FakeCloud):
        def instances(self) -> list[Instance]:
            undated = replace(listed, id="8", created_at=None)
            return [*super().instances(), undated]

    undated = Undated(clock, boxes=cloud.boxes)
    assert to_the_end(known, undated, clock)
    assert undated.destroys == ["101"]


def test_a_row_that_cannot_be_read_keeps_no_box_alive(cloud: FakeCloud, clock: FakeClock) -> None:
    class Broken(FakeCloud):
        def instance(self, instance_id: str) -> Instance | None:
            raise KeyError("actual_status")

    broken = Broken(clock, boxes=cloud.boxes)
    with pytest.raises(KeyError):
        pursue(evidence(), broken, clock)
    assert broken.destroys == ["101"]


def test_a_lookup_that_hangs_keeps_no_box_alive(cloud: FakeCloud, clock: FakeClock) -> None:
    never = threading.Event()

    class Hanging(FakeCloud):
        def instance(self, instance_id: str) -> Instance | None:
            never.wait(3)
            raise ProviderUnreachable("fake: no answer")

    hanging = Hanging(clock, boxes=cloud.boxes)
    with pytest.raises(ProviderUnreachable):
        pursue(evidence(), hanging, clock)
    assert hanging.destroys == ["101"]


def test_a_box_that_nobody_has_listed_is_seen_when_it_is_asked_to_go(
    cloud: FakeCloud, clock: FakeClock
) -> None:
    """As of the black box alone: its proof need not outlast the time that a new box may lag."""
    known, verdict = pursue(replace(evidence(), seen=False), cloud, clock)
    assert known.seen
    clock.advance(20)
    _, verdict = pursue(known, cloud, clock)
    assert verdict.gone
