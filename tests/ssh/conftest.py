"""Homes whose hosts are boxes, and the table of what happened to their runs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from tests.boxes import Box
from tests.hosts import Hosts
from tests.ssh import table

Keep = Callable[[table.Row], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        table.TABLE.option, action="store_true", help="print box shapes x faults at the end"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.box)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    table.TABLE.print(terminalreporter, table.Row)


@pytest.fixture
def keep(request: pytest.FixtureRequest) -> Keep:
    """Adds a row to the table."""
    return lambda row: table.TABLE.keep(request.node.user_properties, row)


@pytest.fixture
def hosts_of(tmp_path: Path) -> Iterator[Callable[..., Hosts]]:
    """Homes with these boxes for hosts, each a controller by itself; all they started is ended."""
    with ExitStack() as ending:
        names = (f"home{number}" for number in count())

        def made(*machines: Box) -> Hosts:
            home = Hosts(tmp_path / next(names), *machines)
            ending.callback(home.close)
            return home

        yield made
