"""An emulated Prime Intellect that stands still until it is advanced, and its adapter."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from provisioners.prime import Prime
from tests.clouds.clock import Clock
from tests.clouds.serve import Cloud, cloud
from tests.clouds.stub import StubBoxes
from tests.fakecloud import FakeClock
from tests.provisioners.prime.renter import Renter, adapter

START = datetime(2026, 11, 21, 12, 20, tzinfo=UTC)


@pytest.fixture
def boxes() -> StubBoxes:
    return StubBoxes()


@pytest.fixture
def api(boxes: StubBoxes) -> Iterator[Cloud]:
    with cloud("prime", boxes=boxes, clock=Clock(START, rate=0)) as running:
        yield running


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def prime(api: Cloud, clock: FakeClock) -> Prime:
    return adapter(api, clock)


@pytest.fixture
def renter(api: Cloud, prime: Prime, clock: FakeClock) -> Renter:
    return Renter(api, prime, clock)
