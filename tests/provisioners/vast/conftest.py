"""An emulated Vast.ai that stands still until its time is moved, and the adapter for it."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from gpurun import web
from provisioners.vast import Vast
from tests.clouds.clock import Clock
from tests.clouds.serve import Cloud, cloud
from tests.clouds.stub import StubBoxes
from tests.fakecloud import FakeClock

START = datetime(2026, 11, 21, 12, 20, tzinfo=UTC)


@pytest.fixture
def boxes() -> StubBoxes:
    return StubBoxes()


@pytest.fixture
def market(boxes: StubBoxes) -> Iterator[Cloud]:
    with cloud("vast", boxes=boxes, clock=Clock(START, rate=0)) as running:
        yield running


@pytest.fixture
def vast(market: Cloud) -> Vast:
    return adapter(market)


def adapter(market: Cloud, clock: FakeClock | None = None, key: str = "", **more: object) -> Vast:
    """Without patience: nothing is repeated and nothing waits."""
    clock = clock or FakeClock(START)
    http = web.client("vast", market.url, key or market.api_key, (), clock)
    return Vast(http, clock, **more)
