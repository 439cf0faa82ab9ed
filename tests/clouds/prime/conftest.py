"""An emulated Prime Intellect that stands still until its time is moved, and a user of it."""

from collections.abc import Iterator

import pytest

from tests.clouds.clock import Clock
from tests.clouds.prime.renter import START, Renter
from tests.clouds.serve import Cloud, cloud
from tests.clouds.stub import StubBoxes


@pytest.fixture
def boxes() -> StubBoxes:
    return StubBoxes()


@pytest.fixture
def prime(boxes: StubBoxes) -> Iterator[Cloud]:
    with cloud("prime", boxes=boxes, clock=Clock(START, rate=0)) as running:
        yield running


@pytest.fixture
def renter(prime: Cloud) -> Renter:
    return Renter(prime)
