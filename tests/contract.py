"""What every provider promises, and every provider's tests assert.

A subclass gives a `cloud` that is empty, in which NEED can be met and nothing costs real money;
`settle` lets its time pass until an answer shows what was done.  Faults that only some providers
can have (a lost answer, a list that lags) are in each provider's own tests.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from gpurun.errors import CreateFailedButMade, CreateUnclear, NoCapacity
from gpurun.model import Created, InstanceState, Need, Order
from gpurun.provider import Provisioner

NEED = Need(gpu=None, gpu_count=0, disk_gb=1)
START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
# Of this process alone: what bears a label is ended by it, and tests run side by side.
TESTER = os.environ.get("GPURUN_TESTER") or f"test{os.getpid()}"
LABEL = f"gpurun-aaaaaa-{TESTER}-cccc01"
OTHER_LABEL = f"gpurun-aaaaaa-{TESTER}-cccc02"


def order(cloud: Provisioner, label: str = LABEL, need: Need = NEED) -> Order:
    """For the cheapest offer of this cloud."""
    offer = next(iter(cloud.offers(need)))
    return Order(
        offer=offer,
        need=need,
        label=label,
        fires_at=START,
        ends_at=START + timedelta(minutes=1),
        max_usd_per_hour=offer.usd_per_hour,
    )


class ProvisionerContract:
    unknown_id = "1234567890"

    def rent(self, cloud: Provisioner, label: str = LABEL) -> str:
        return cloud.create(order(cloud, label)).instance_id

    def settle(self, cloud: Provisioner) -> None:
        """Let what was asked for come into view."""

    def test_its_name_is_the_one_its_rows_bear(self, cloud: Provisioner) -> None:
        self.rent(cloud)
        self.settle(cloud)
        assert [row.provider for row in cloud.instances()] == [cloud.name]
        assert {offer.provider for offer in cloud.offers(NEED)} == {cloud.name}

    def test_its_traits_can_be_planned_with(self, cloud: Provisioner) -> None:
        traits = cloud.traits
        assert traits.settle_window_s > 0
        assert traits.proof_gap_s > 0
        assert traits.tail_s >= 0

    def test_the_account_is_the_same_each_time_it_is_asked(self, cloud: Provisioner) -> None:
        assert cloud.account()
        assert cloud.account() == cloud.account()

    def test_offers_come_cheapest_first_in_decimal_dollars(self, cloud: Provisioner) -> None:
        rates = [offer.usd_per_hour for offer in cloud.offers(NEED)]
        assert rates
        assert all(type(rate) is Decimal for rate in rates)
        assert rates == sorted(rates)
        assert rates[0] >= 0

    def test_an_offer_has_the_disk_and_the_gpus_that_were_asked(self, cloud: Provisioner) -> None:
        for offer in cloud.offers(NEED):
            assert offer.disk_gb >= NEED.disk_gb
            assert offer.gpu_count >= NEED.gpu_count

    def test_what_nobody_has_is_not_offered(self, cloud: Provisioner) -> None:
        assert not list(self.impossible_offers(cloud))

    def impossible_offers(self, cloud: Provisioner) -> Iterable[object]:
        return cloud.offers(replace(NEED, gpu="GPU OF NO MAKER", gpu_count=4096))

    def test_an_empty_account_has_no_instances(self, cloud: Provisioner) -> None:
        assert cloud.instances() == []

    def test_what_was_rented_is_found_again_by_its_label(self, cloud: Provisioner) -> None:
        instance_id = self.rent(cloud)
        self.settle(cloud)
        assert [(row.id, row.label) for row in cloud.instances()] == [(instance_id, LABEL)]

    def test_two_boxes_are_two_rows(self, cloud: Provisioner) -> None:
        rented = {self.rent(cloud, LABEL): LABEL, self.rent(cloud, OTHER_LABEL): OTHER_LABEL}
        self.settle(cloud)
        assert {row.id: row.label for row in cloud.instances()} == rented

    def test_one_row_by_id_is_the_row_of_the_list(self, cloud: Provisioner) -> None:
        instance_id = self.rent(cloud)
        self.settle(cloud)
        assert [cloud.instance(instance_id)] == cloud.instances()

    def test_an_unknown_id_has_no_row(self, cloud: Provisioner) -> None:
        assert cloud.instance(self.unknown_id) is None

    def test_a_row_tells_the_rate_of_the_offer_and_when_it_began(self, cloud: Provisioner) -> None:
        offered = order(cloud).offer.usd_per_hour
        self.rent(cloud)
        self.settle(cloud)
        row = cloud.instances()[0]
        assert type(row.usd_per_hour) is Decimal
        assert row.usd_per_hour == offered
        assert row.created_at is not None
        assert row.created_at.utcoffset() == timedelta(0)

    def test_a_new_box_is_starting_or_running(self, cloud: Provisioner) -> None:
        self.rent(cloud)
        self.settle(cloud)
        assert cloud.instances()[0].state in (InstanceState.STARTING, InstanceState.RUNNING)

    def test_more_than_the_price_allowed_rents_nothing(self, cloud: Provisioner) -> None:
        dear = replace(order(cloud), max_usd_per_hour=Decimal("-1"))
        with pytest.raises(NoCapacity):
            cloud.create(dear)
        self.settle(cloud)
        assert cloud.instances() == []

    def test_what_is_destroyed_is_neither_listed_nor_found(self, cloud: Provisioner) -> None:
        instance_id = self.rent(cloud)
        cloud.destroy(instance_id)
        self.settle(cloud)
        assert cloud.instances() == []
        assert cloud.instance(instance_id) is None

    def test_destroying_one_leaves_the_other(self, cloud: Provisioner) -> None:
        first, second = self.rent(cloud, LABEL), self.rent(cloud, OTHER_LABEL)
        cloud.destroy(first)
        self.settle(cloud)
        assert [row.id for row in cloud.instances()] == [second]

    def test_destroying_twice_is_fine(self, cloud: Provisioner) -> None:
        instance_id = self.rent(cloud)
        cloud.destroy(instance_id)
        cloud.destroy(instance_id)
        self.settle(cloud)
        assert cloud.instances() == []

    def test_destroying_what_never_was_is_fine(self, cloud: Provisioner) -> None:
        cloud.destroy(self.unknown_id)

    def test_the_key_of_a_box_is_not_in_what_is_printed(self, cloud: Provisioner) -> None:
        made = cloud.create(order(cloud))
        assert isinstance(made, Created)
        assert not made.box_key or made.box_key not in repr(made)


class UniqueLabelContract(ProvisionerContract):
    """For a provider that itself refuses a label that it has seen."""

    def test_a_label_that_was_used_never_makes_a_second_box(self, cloud: Provisioner) -> None:
        first = self.rent(cloud)
        with pytest.raises(CreateFailedButMade) as refusal:
            self.rent(cloud)
        assert refusal.value.instance_id == first
        assert [row.id for row in cloud.instances()] == [first]

    def test_nor_does_it_after_that_box_is_gone(self, cloud: Provisioner) -> None:
        cloud.destroy(self.rent(cloud))
        with pytest.raises(CreateUnclear):
            self.rent(cloud)
        assert cloud.instances() == []
