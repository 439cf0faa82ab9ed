"""A cloud on this machine, by every way of containment that works here."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioners.local import Local
from tests.provisioners.local.boxes import (
    SURE,
    WORKING,
    end_boxes_of_dead_tests,
    opened,
)


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left_of_dead_tests() -> None:
    end_boxes_of_dead_tests()


@pytest.fixture(params=WORKING)
def cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Local]:
    yield from opened(tmp_path, [request.param])


@pytest.fixture(params=SURE)
def sure_cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Local]:
    yield from opened(tmp_path, [request.param])


@pytest.fixture
def any_cloud(tmp_path: Path) -> Iterator[Local]:
    yield from opened(tmp_path, WORKING)
