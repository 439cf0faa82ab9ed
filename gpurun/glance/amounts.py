"""Amounts of money as the journal holds them: text, so that no digit is lost."""

from decimal import Decimal, InvalidOperation
from typing import Any

MOST_USD = Decimal(10**12)


def dollars(text: object) -> Decimal:
    """What is no amount, in a damaged row, counts as nothing."""
    try:
        found = Decimal(str(text)) if text is not None else Decimal(0)
    except InvalidOperation:
        return Decimal(0)
    return found if found.is_finite() and abs(found) < MOST_USD else Decimal(0)


class ExactSum:
    """`exact_sum(column)` in SQL, whose own SUM makes floats of text."""

    def __init__(self) -> None:
        self._total = Decimal(0)

    def step(self, text: Any) -> None:
        self._total += dollars(text)

    def finalize(self) -> Any:
        return format(self._total, "f")
