"""Amounts as the API writes them: numbers, numbers in text, null."""

from decimal import Decimal, InvalidOperation


def amount(value: object) -> Decimal | None:
    """None for what is no finite amount, as an unknown price is written."""
    if isinstance(value, bool) or not isinstance(value, Decimal | int | str):
        return None
    try:
        found = Decimal(value)
    except InvalidOperation:
        return None
    return found if found.is_finite() and found >= 0 else None
