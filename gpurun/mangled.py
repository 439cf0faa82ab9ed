"""What can be understood of a TOML file that is none: its lines that are right."""

import re
import tomllib
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

MOST_LINES = 20  # that one value may take
OPENS = ("[", "{", '"""', "'''")

Table = dict[str, Any]


def understood(text: str) -> Table:
    """Numbers with a point are Decimal.  {} where nothing is right; it never fails.

    Each table is read by itself: the work grows with the length of the file alone.
    """
    if (whole := _parsed(text)) is not None:
        return whole
    found: Table = {}
    for table in re.split(r"(?m)^(?=[ \t]*\[)", text):
        for part in _of_table(table):
            _add(found, part, table.lstrip().startswith("[["))
    return found


def _of_table(table: str) -> Iterator[Table]:
    """Under a wrong head no line is right; an entry of a list is taken whole, or not."""
    if (whole := _parsed(table)) is not None:
        yield whole
        return
    if table.lstrip().startswith("[["):
        return
    head, lines = "", table.split("\n")
    if table.lstrip().startswith("["):
        head = f"{lines.pop(0)}\n"
        if _parsed(head) is None:
            return
    while lines:
        several = any(mark in lines[0] for mark in OPENS)
        for n in range(1, min(len(lines), MOST_LINES if several else 1) + 1):
            if (part := _parsed(head + "\n".join(lines[:n]))) is not None:
                yield part
                break
        else:
            n = 1
        lines = lines[n:]


def _add(found: Table, part: Table, is_entry: bool) -> None:
    """What stands further up counts; entries of a list come one by one."""
    for name, value in part.items():
        known = found.setdefault(name, value)
        if known is value:
            continue
        if isinstance(known, dict) and isinstance(value, dict):
            _add(known, value, is_entry)
        elif is_entry and isinstance(known, list) and isinstance(value, list):
            known += value


def _parsed(text: str) -> Table | None:
    try:
        return tomllib.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError):  # also of numbers too long, and of what nests too deeply
        return None
