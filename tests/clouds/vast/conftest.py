"""An emulated Vast.ai that stands still until its time is moved, its stub boxes, and a user."""

from collections.abc import Iterator

import pytest

from tests.clouds.clock import Clock
from tests.clouds.serve import Cloud, cloud
from tests.clouds.stub import StubBoxes
from tests.clouds.vast.renter import START, Renter


@pytest.fixture
def boxes() -> StubBoxes:
    return StubBoxes()


@pytest.fixture
def vast(boxes: StubBoxes) -> Iterator[Cloud]:
    with cloud("vast", boxes=boxes, clock=Clock(START, rate=0)) as running:
        yield running


@pytest.fixture
def renter(vast: Cloud) -> Renter:
    return Renter(vast)
