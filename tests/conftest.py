"""Fixtures that more than one test file uses."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.homes import Home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A state directory of its own; all that it started is ended."""
    made = Home(tmp_path)
    yield made
    made.close()
