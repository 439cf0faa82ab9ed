"""Half of a limit is spent, four fifths, nearly all: one measure for all who say so.

What counts as spent is what is shown: booked, billed since then, and what may be billed beside a
rate, until the provider has said what it charged.
"""

from decimal import ROUND_CEILING, Decimal

from gpurun.budget import CENT
from gpurun.model import SETTLED, AttemptState

MARKS = (50, 80, 95)  # percent


def passed(spent: Decimal, limit: Decimal) -> int:
    """The last mark that was passed, in percent; 0: none.  A cent that was begun is spent."""
    spent = spent.quantize(CENT, rounding=ROUND_CEILING)
    return max((mark for mark in MARKS if 0 < limit * mark <= spent * 100), default=0)


def counted_holds(state: str | None) -> tuple[str, ...]:
    """Phases of what is held for a box that count as spent while its provider has not charged.

    Of a ghost nothing is known; its tail is none before a box is gone.
    """
    if state == AttemptState.GONE:
        return ("tail", "traffic")
    return () if state in (AttemptState.INTENT, AttemptState.GHOST, *SETTLED) else ("traffic",)
