"""A box for a fuse, of every kind or of any."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuse.places import SHELLS, Place, place_with


@pytest.fixture(params=SHELLS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield from place_with(request.param, tmp_path)


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Place]:
    """For what no interpreter can change."""
    yield from place_with("sh", tmp_path)
