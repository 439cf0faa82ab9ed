"""An emulated Prime Intellect that stands still until it is advanced, and its adapter."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpurun.hardware.models import is_the
from gpurun.model import Need, Order
from provisioners.prime import Prime
from provisioners.prime.access import Access
from tests.clouds.clock import Clock
from tests.clouds.serve import Cloud, cloud
from tests.clouds.stub import StubBoxes
from tests.fakecloud import FakeClock

START = datetime(2026, 11, 21, 12, 20, tzinfo=UTC)
H100X4 = Need("H100 SXM", 4, 200)
LABEL = "gpurun-aaaaaa-bbbbbb-cccc01"


@pytest.fixture
def api() -> Iterator[Cloud]:
    with cloud("prime", boxes=StubBoxes(), clock=Clock(START, rate=0)) as running:
        yield running


@pytest.fixture
def prime(api: Cloud) -> Prime:
    return adapter(api)


@pytest.fixture
def order_of(prime: Prime) -> Callable[..., Order]:
    """An order for the cheapest on-demand offer that fits."""

    def made(need: Need = H100X4, label: str = LABEL, **more: object) -> Order:
        offer = next(iter(prime.offers(need)))
        order = Order(
            offer=offer,
            need=need,
            label=label,
            fires_at=START + timedelta(minutes=40),
            ends_at=START + timedelta(minutes=45),
            max_usd_per_hour=offer.usd_per_hour * 2,
        )
        return replace(order, **more)

    return made


def adapter(api: Cloud, public_keys: tuple[str, ...] = (), **access: object) -> Prime:
    key = {"api_key": api.api_key, "source": "the test", "url": api.url}
    return Prime(Access(**{**key, **access}), FakeClock(), is_the, public_keys)
