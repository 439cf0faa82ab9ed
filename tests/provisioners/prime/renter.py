"""Somebody who rents at the emulated Prime Intellect through the adapter, and ends by PROOF."""

from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal

from gpurun import web
from gpurun.errors import CreateFailedButMade, ProviderError
from gpurun.hardware.models import is_the
from gpurun.model import Instance, Need, Offer, Order
from gpurun.proof import Evidence
from gpurun.reaper import pursue
from provisioners.prime import Prime
from provisioners.prime.access import Access
from tests.clouds.serve import Cloud
from tests.clouds.world import BOOT_S
from tests.fakecloud import FakeClock

H100X4 = Need("H100 SXM", 4, 200)
LABEL = "gpurun-aaaaaa-bbbbbb-cccc01"
USD = Decimal("8.76")  # per hour, the cheapest 4xH100 that cannot be outbid
AGAIN_S = 20


def adapter(
    api: Cloud, clock: FakeClock, public_keys: tuple[str, ...] = (), **access: object
) -> Prime:
    """Without patience: nothing is repeated and nothing waits."""
    key = {"api_key": api.api_key, "source": "the test", "url": api.url}
    found = Access(**{**key, **access})
    http = web.client("prime", found.url, found.api_key, (), clock)
    return Prime(found, http, is_the, public_keys)


@dataclass
class Renter:
    api: Cloud
    prime: Prime
    clock: FakeClock

    def offers(self, need: Need = H100X4) -> list[Offer]:
        return list(self.prime.offers(need))

    def offer(self, upstream: str) -> Offer:
        return next(each for each in self.offers() if each.place.startswith(upstream))

    def order(self, offer: Offer | None = None, label: str = LABEL, **more: object) -> Order:
        """For the cheapest offer, at twice its price at most, if nothing else is said."""
        offer = offer or self.offers()[0]
        order = Order(
            offer=offer,
            need=H100X4,
            label=label,
            fires_at=self.clock.now() + timedelta(minutes=40),
            ends_at=self.clock.now() + timedelta(minutes=45),
            max_usd_per_hour=offer.usd_per_hour * 2,
        )
        return replace(order, **more)

    def create(self, order: Order | None = None) -> str:
        """The id, also of what was made though it is not what was ordered."""
        try:
            return self.prime.create(order or self.order()).instance_id
        except CreateFailedButMade as error:
            return error.instance_id

    def rent(self, order: Order | None = None) -> str:
        """The id of a pod that runs."""
        number = self.create(order)
        self.wait(BOOT_S + 1)
        return number

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.api.advance(seconds)

    def row(self, number: str) -> Instance:
        row = self.prime.instance(number)
        assert row is not None
        return row

    def labels(self) -> list[str]:
        return [row.label for row in self.prime.instances()]

    def end(self, number: str, within_s: float = 7200) -> Decimal:
        """Dollars that it cost from now until it was proven gone; the meter must then rest."""
        before_usd = self.api.meter().billed_usd
        evidence = Evidence(self.prime.account(), LABEL, number, seen=True)
        for _ in range(int(within_s / AGAIN_S)):
            try:
                evidence, verdict = pursue(evidence, self.prime, self.clock)
            except ProviderError:
                verdict = None
            if verdict is not None and verdict.gone:
                assert number not in self.alive(), "a false death"
                return usd(self.api.meter().billed_usd - before_usd)
            self.wait(AGAIN_S)
        raise AssertionError(f"not proven gone within {within_s} s")

    def alive(self) -> set[str]:
        """What exists and bills, by the cloud's own books."""
        return {line.id for line in self.api.meter().instances if line.alive}

    def costs(self, seconds: float) -> Decimal:
        """What everything bills while this time passes."""
        before_usd = self.api.meter().billed_usd
        self.wait(seconds)
        return usd(self.api.meter().billed_usd - before_usd)


def usd(amount: Decimal) -> Decimal:
    return round(amount, 2)
