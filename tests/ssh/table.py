"""What happened to whole runs on boxes of each shape under each fault, as the tests saw it.

    python -m pytest tests/ssh --table

Each row comes from a run's last document, or from the answer of a command that began none.
"""

import json
import subprocess
from dataclasses import dataclass
from typing import Any

from tests.tables import Table

TABLE = Table("--table", "box shapes x faults")


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
        TABLE.short(document["error"] or document["reason"] or ""),
    )


def of_command(
    shape: str, fault: str, done: "subprocess.CompletedProcess[str]", seconds: float
) -> Row:
    """A command that began no run, by its answer."""
    said = done.stderr.strip().rpartition("gpurun: ")[2] or done.stdout.strip()
    if done.stdout.startswith("{"):
        said = json.loads(done.stdout)["error"]["message"]
    return Row(
        shape, fault, "refused", done.returncode, round(seconds, 1), "0.00", TABLE.short(said)
    )
