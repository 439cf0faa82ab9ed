"""What happened to whole runs on boxes of each shape under each fault, as the tests saw it.

    python -m pytest tests/ssh --table

Each row comes from a run's last document, or from the answer of a command that began none; it
travels with the test's report, so that tests in several processes fill one table.
"""

import json
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

SAID_CHARS = 110
NAME = "box shape and fault"


@dataclass(frozen=True, slots=True)
class Row:
    """seconds are those of the run; usd is what the ledger has booked for it."""

    shape: str
    fault: str
    state: str
    exit_code: int
    seconds: float
    usd: str
    said: str


def of_run(shape: str, fault: str, document: dict[str, Any]) -> Row:
    """A run that has ended, by its document of `status --json`."""
    return Row(
        shape,
        fault,
        document["state"],
        int(document["exit_code"] or 0),
        round(float(document["elapsed_s"]), 1),
        document["spent_usd"],
        _short(document["error"] or document["reason"] or ""),
    )


def of_command(
    shape: str, fault: str, done: "subprocess.CompletedProcess[str]", seconds: float
) -> Row:
    """A command that began no run, by its answer."""
    said = done.stderr.strip().rpartition("gpurun: ")[2] or done.stdout.strip()
    if done.stdout.startswith("{"):
        said = json.loads(done.stdout)["error"]["message"]
    return Row(shape, fault, "refused", done.returncode, round(seconds, 1), "0.00", _short(said))


def text(rows: Iterable[Row]) -> str:
    """The table, in Markdown."""
    heads = [field.name.replace("_", " ") for field in fields(Row)]
    lines = [heads, ["---"] * len(heads)]
    lines += [[str(value).replace("|", "\\|") for value in astuple(row)] for row in sorted_(rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def sorted_(rows: Iterable[Row]) -> list[Row]:
    return sorted(set(rows), key=lambda row: (row.shape, row.fault))


def kept(properties: Iterable[tuple[str, Any]]) -> list[Row]:
    """The rows that a test's report has brought."""
    return [Row(**value) for name, value in properties if name == NAME]


def keeping(properties: list[tuple[str, Any]]) -> Callable[[Row], None]:
    """Add rows to a test's report."""

    def keep(row: Row) -> None:
        properties.append((NAME, asdict(row)))

    return keep


def _short(said: str) -> str:
    line = " ".join(said.split())
    return line if len(line) <= SAID_CHARS else f"{line[: SAID_CHARS - 1]}…"
