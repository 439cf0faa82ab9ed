"""Fixtures that more than one test file uses."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import boxes
from tests.homes import Home


def pytest_sessionstart() -> None:
    """Remove the boxes that a killed session has left."""
    boxes.sweep()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A state directory of its own; all that it started is ended."""
    made = Home(tmp_path)
    yield made
    made.close()
