"""The fake passes what the real ones pass; its faults do what their names say."""

import pytest

from gpurun.errors import CreateFailedButMade, CreateUnclear, NoCapacity, ProviderUnreachable
from gpurun.model import InstanceState
from tests.contract import LABEL, ProvisionerContract, order
from tests.fakecloud import FakeClock, FakeCloud


@pytest.fixture
def cloud() -> FakeCloud:
    return FakeCloud(FakeClock())


class TestContract(ProvisionerContract):
    def impossible_offers(self, cloud: FakeCloud):
        cloud.sold_out = True
        return super().impossible_offers(cloud)

    def test_no_method_sleeps(self, cloud: FakeCloud) -> None:
        cloud.destroy(self.rent(cloud))
        assert cloud.clock.slept_s == []


def test_a_box_boots_after_ninety_seconds_of_the_fake_clock(cloud: FakeCloud) -> None:
    cloud.create(order(cloud))
    assert cloud.instances()[0].state is InstanceState.STARTING
    cloud.clock.advance(90)
    assert cloud.instances()[0].state is InstanceState.RUNNING


def test_sold_out_makes_nothing(cloud: FakeCloud) -> None:
    wanted = order(cloud)
    cloud.sold_out = True
    with pytest.raises(NoCapacity):
        cloud.create(wanted)
    assert cloud.boxes == {}


def test_a_lost_answer_leaves_a_box_that_is_listed(cloud: FakeCloud) -> None:
    cloud.lost_answer = True
    with pytest.raises(CreateUnclear):
        cloud.create(order(cloud))
    assert [row.label for row in cloud.instances()] == [LABEL]


def test_a_refusal_can_leave_a_box_and_says_so(cloud: FakeCloud) -> None:
    cloud.refused_but_made = True
    with pytest.raises(CreateFailedButMade) as refusal:
        cloud.create(order(cloud))
    assert [row.id for row in cloud.instances()] == [refusal.value.instance_id]


def test_a_lagging_list_shows_the_box_later_than_it_is_found_by_id(cloud: FakeCloud) -> None:
    cloud.list_lag_s = 45
    made = cloud.create(order(cloud))
    assert cloud.instances() == []
    assert cloud.instance(made.instance_id) is not None
    cloud.clock.advance(45)
    assert [row.id for row in cloud.instances()] == [made.instance_id]


def test_a_destroy_that_does_nothing_leaves_the_box_billing(cloud: FakeCloud) -> None:
    made = cloud.create(order(cloud))
    cloud.destroy_does_nothing = True
    cloud.destroy(made.instance_id)
    assert cloud.instance(made.instance_id) is not None


def test_an_empty_list_can_lie(cloud: FakeCloud) -> None:
    made = cloud.create(order(cloud))
    cloud.list_empty = True
    assert cloud.instances() == []
    assert cloud.instance(made.instance_id) is not None


def test_unreachable_is_said_by_every_method(cloud: FakeCloud) -> None:
    wanted = order(cloud)
    cloud.unreachable = True
    for ask in (
        cloud.account,
        cloud.instances,
        lambda: cloud.instance("1"),
        lambda: cloud.create(wanted),
        lambda: cloud.destroy("1"),
    ):
        with pytest.raises(ProviderUnreachable):
            ask()
    assert cloud.creates == []
