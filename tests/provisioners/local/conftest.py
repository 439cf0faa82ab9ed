"""A cloud on this machine, by every way of containment that works here."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioners.local import Local
from tests.provisioners.local.boxes import (
    SURE,
    WORKING,
    opened,
)


@pytest.fixture(params=WORKING)
def cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Local]:
    yield from opened(tmp_path, [request.param])


@pytest.fixture(params=SURE)
def sure_cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Local]:
    yield from opened(tmp_path, [request.param])


@pytest.fixture
def any_cloud(tmp_path: Path) -> Iterator[Local]:
    yield from opened(tmp_path, WORKING)
