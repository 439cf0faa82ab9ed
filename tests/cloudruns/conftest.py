"""Whole runs at the emulated clouds, and the table of what the faults came to."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cloudruns import table
from tests.cloudruns.stories import Story, Told, begun

HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(table.TABLE.option, action="store_true", help="every fault at each cloud")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption(table.TABLE.option, False):
        left = [item for item in items if (told := _story(item)) and not told[1].usually(told[0])]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.box)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    table.TABLE.print(terminalreporter, table.Row)


@pytest.fixture(scope="session")
def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Told]:
    """Every story that this session is to hear; begun when the first is asked for."""
    wanted = [story for item in request.session.items if (story := _story(item))]
    with begun(wanted, tmp_path_factory.mktemp("stories")) as outcomes:
        yield outcomes


def _story(item: pytest.Item) -> tuple[str, Story] | None:
    values = getattr(getattr(item, "callspec", None), "params", {})
    return (values["provider"], values["story"]) if "story" in values else None
