"""A cloud and a clock in memory, for tests of the engine.

The cloud passes the same contract as the real ones, else it would lie.  It proves no claim about
money: that is done on emulated providers whose instances are real boxes with a meter.
Faults are fields that a test sets.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from gpurun.errors import CreateFailedButMade, CreateUnclear, NoCapacity, ProviderUnreachable
from gpurun.model import Created, Instance, InstanceState, Need, Offer, Order
from gpurun.provider import Traits


class FakeClock:
    """Stands still until it is advanced; a sleep advances it, and is remembered."""

    def __init__(self, start: datetime = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)) -> None:
        self.boot_id = "fake-boot"
        self.sure = True
        self.slept_s: list[float] = []
        self._now = start
        self._boot_s = 1000.0

    def now(self) -> datetime:
        return self._now

    def boot_s(self) -> float:
        return self._boot_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.advance(seconds)

    def dated(self) -> datetime | None:
        return None

    def observe(self, provider_date: datetime, took_s: float = 0.0) -> None:
        pass

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        self._boot_s += seconds


@dataclass
class FakeCloud:
    clock: FakeClock
    usd_per_hour: Decimal = Decimal("1.89")
    boot_s: float = 90

    account_id: str = "fake-account"
    sold_out: bool = False
    unreachable: bool = False
    lost_answer: bool = False  # `create` makes the box and does not say so
    refused_but_made: bool = False
    destroy_does_nothing: bool = False  # it is acknowledged all the same
    list_lag_s: float = 0  # a new box is listed only after this time
    list_empty: bool = False

    creates: list[str] = field(default_factory=list)  # labels, as they came in
    destroys: list[str] = field(default_factory=list)
    boxes: dict[str, Instance] = field(default_factory=dict)  # what there truly is, and bills

    name = "fake"
    traits = Traits(settle_window_s=120, proof_gap_s=20, tail_s=0, fuse_ends_bill=False)

    def account(self) -> str:
        self._answer()
        return self.account_id

    def offers(self, need: Need) -> Iterable[Offer]:
        self._answer()
        if self.sold_out:
            return []
        gpu, count = need.gpu or "RTX 4090", max(need.gpu_count, 1)
        dearer = self.usd_per_hour * 2
        return [
            Offer(self.name, str(number), gpu, count, rate, need.disk_gb)
            for number, rate in enumerate([self.usd_per_hour, dearer], 1)
        ]

    def instances(self) -> list[Instance]:
        self._answer()
        listed_before = self.clock.now() - timedelta(seconds=self.list_lag_s)
        rows = [self._now(box) for box in self.boxes.values()]
        return [] if self.list_empty else [r for r in rows if r.created_at <= listed_before]

    def instance(self, instance_id: str) -> Instance | None:
        self._answer()
        box = self.boxes.get(instance_id)
        return self._now(box) if box else None

    def create(self, order: Order) -> Created:
        self._answer()
        self.creates.append(order.label)
        if self.sold_out or order.offer.usd_per_hour > order.max_usd_per_hour:
            raise NoCapacity(f"fake: offer {order.offer.id} is gone")
        made = Instance(
            provider=self.name,
            id=str(100 + len(self.creates)),
            label=order.label,
            state=InstanceState.STARTING,
            usd_per_hour=order.offer.usd_per_hour,
            created_at=self.clock.now(),
            gpu=order.offer.gpu,
            gpu_count=order.offer.gpu_count,
        )
        self.boxes[made.id] = made
        if self.lost_answer:
            raise CreateUnclear("fake: no answer")
        if self.refused_but_made:
            raise CreateFailedButMade("fake: refused", made.id)
        return Created(made.id, box_key=f"key-of-{made.id}")

    def destroy(self, instance_id: str) -> None:
        self._answer()
        self.destroys.append(instance_id)
        if not self.destroy_does_nothing:
            self.boxes.pop(instance_id, None)

    def _answer(self) -> None:
        if self.unreachable:
            raise ProviderUnreachable("fake: no route to the provider")

    def _now(self, box: Instance) -> Instance:
        ready = self.clock.now() >= box.created_at + timedelta(seconds=self.boot_s)
        return replace(box, state=InstanceState.RUNNING if ready else box.state)
