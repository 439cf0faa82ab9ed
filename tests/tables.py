"""Tables that tests fill: a row travels with its test's report, from whichever process."""

from collections.abc import Iterable
from dataclasses import Field, asdict, astuple, dataclass, fields
from typing import Any, ClassVar, Protocol

import pytest


class Row(Protocol):
    """A dataclass; its first two fields order the table."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


@dataclass(frozen=True, slots=True)
class Table:
    """`option` of pytest asks for it."""

    option: str
    title: str
    said_chars: int = 110

    def keep(self, properties: list[tuple[str, Any]], row: Row) -> None:
        properties.append((self.title, asdict(row)))

    def print(self, reporter: pytest.TerminalReporter, kind: type[Row]) -> None:
        """At the end of a session, in Markdown."""
        if not reporter.config.getoption(self.option, False):
            return
        reports = [one for found in reporter.stats.values() for one in found]
        called = [one for one in reports if getattr(one, "when", "") == "call"]
        brought = [each for one in called for each in one.user_properties]
        reporter.section(self.title)
        reporter.write(_text(kind, [kind(**row) for name, row in brought if name == self.title]))

    def short(self, said: str) -> str:
        line = " ".join(said.split())
        return line if len(line) <= self.said_chars else f"{line[: self.said_chars - 1]}…"


def _text(kind: type[Row], rows: Iterable[Row]) -> str:
    heads = [field.name.replace("_", " ") for field in fields(kind)]
    cells = [[str(value).replace("|", "\\|") for value in astuple(row)] for row in rows]
    ordered = sorted(map(list, set(map(tuple, cells))), key=lambda line: line[:2])
    lines = [heads, ["---"] * len(heads), *ordered]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
