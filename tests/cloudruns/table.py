"""What each fault of each cloud came to for a whole run, as the tests saw it.

python -m pytest tests/cloudruns --fault-table
"""

from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass, fields
from decimal import Decimal
from typing import Any

from tests.cloudruns.scene import Outcome

NAME = "fault of a cloud"
SAID_CHARS = 90


@dataclass(frozen=True, slots=True)
class Row:
    """Dollars are those of the cloud's meter; seconds those of the run."""

    fault: str
    provider: str
    state: str
    exit_code: int
    boxes: int
    leaked_usd: str
    billed_usd: str
    seconds: float
    said: str


def row(fault: str, provider: str, outcome: Outcome) -> Row:
    said = outcome.said.replace("|", "\\|")
    values = asdict(outcome) | {
        "leaked_usd": _usd(outcome.leaked_usd),
        "billed_usd": _usd(outcome.billed_usd),
        "said": said if len(said) <= SAID_CHARS else f"{said[: SAID_CHARS - 1]}…",
    }
    return Row(fault, provider, **values)


def keep(properties: list[tuple[str, Any]], made: Row) -> None:
    """It travels with the test's report, so that tests of several processes fill one table."""
    properties.append((NAME, asdict(made)))


def kept(properties: Iterable[tuple[str, Any]]) -> list[Row]:
    return [Row(**value) for name, value in properties if name == NAME]


def text(rows: Iterable[Row]) -> str:
    """The table, in Markdown."""
    heads = [field.name.replace("_", " ") for field in fields(Row)]
    lines = [heads, ["---"] * len(heads)]
    ordered = sorted(set(rows), key=lambda each: (each.fault, each.provider))
    lines += [[str(value) for value in astuple(each)] for each in ordered]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _usd(amount: Decimal) -> str:
    return f"{amount:.2f}"
