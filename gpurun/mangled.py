"""What can be understood of a TOML file that is none: its lines that are right."""

import re
import tomllib
from decimal import Decimal
from typing import Any

MOST_LINES = 20  # that one value may take


def understood(text: str) -> dict[str, Any]:
    """Numbers with a point are Decimal.  {} where nothing is right; it never fails."""
    kept = ""
    for table in re.split(r"(?m)^(?=[ \t]*\[)", text):
        kept += _of_table(table, kept)
    return _parsed(kept) or {}


def _of_table(table: str, before: str) -> str:
    """Under a wrong head no line is right; an entry of a list is taken whole, or not."""
    if _parsed(before + table) is not None:
        return table
    if table.lstrip().startswith("[["):
        return ""
    kept, lines = "", table.splitlines(keepends=True)
    while lines:
        ends = range(1, min(len(lines), MOST_LINES) + 1)
        taken = next(
            (n for n in ends if _parsed(before + kept + "".join(lines[:n])) is not None), 0
        )
        if not taken and not kept and table.lstrip().startswith("["):
            return ""
        kept += "".join(lines[:taken])
        lines = lines[taken or 1 :]
    return kept


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError):  # also of numbers too long, and of what nests too deeply
        return None
