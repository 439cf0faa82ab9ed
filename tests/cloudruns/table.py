"""What each fault of each cloud came to for a whole run, as the tests saw it.

python -m pytest tests/cloudruns --fault-table
"""

from dataclasses import asdict, dataclass
from decimal import Decimal

from tests.cloudruns.scene import Outcome
from tests.tables import Table

TABLE = Table("--fault-table", "faults x clouds", said_chars=90)


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
    values = asdict(outcome) | {
        "leaked_usd": _usd(outcome.leaked_usd),
        "billed_usd": _usd(outcome.billed_usd),
        "said": TABLE.short(outcome.said),
    }
    return Row(fault, provider, **values)


def _usd(amount: Decimal) -> str:
    return f"{amount:.2f}"
