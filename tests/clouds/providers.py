"""What each emulated provider is made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from tests.clouds.boxes import Boxes
from tests.clouds.clock import Clock
from tests.clouds.faults import Setting
from tests.clouds.prime import routes as prime_routes
from tests.clouds.prime import skus
from tests.clouds.prime.world import PrimeWorld
from tests.clouds.vast import machines as vast_machines
from tests.clouds.vast import routes as vast_routes
from tests.clouds.vast.world import VastWorld
from tests.clouds.wire import Endpoint, Reply
from tests.clouds.world import World


@dataclass(frozen=True, slots=True)
class Provider:
    """How to make its world, what it answers, and how it says that this is too often."""

    world: Callable[[Clock, Boxes, Decimal, int | None], World]
    endpoints: Callable[[], list[Endpoint]]
    too_frequent: Callable[[Setting], Reply]


def _vast(clock: Clock, boxes: Boxes, credit_usd: Decimal, offers: int | None) -> World:
    machines = vast_machines.market() if offers is None else vast_machines.wide_market(offers)
    return VastWorld(clock, boxes, credit_usd, machines)


def _prime(clock: Clock, boxes: Boxes, credit_usd: Decimal, offers: int | None) -> World:
    rows = skus.market() if offers is None else skus.wide_market(offers)
    return PrimeWorld(clock, boxes, credit_usd, rows)


PROVIDERS: Mapping[str, Provider] = {
    "prime": Provider(_prime, prime_routes.endpoints, prime_routes.too_many),
    "vast": Provider(_vast, vast_routes.endpoints, vast_routes.too_frequent),
}
