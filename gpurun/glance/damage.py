"""Cells of a run's rows that hold nothing of their kind, for `status` to show."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from gpurun.glance.reader import Row
from gpurun.glance.rows import Parts, amount, instant
from gpurun.model import WORDS

INSTANTS = ("_at", "_at_read")
SECONDS = ("_boot_s",)
AMOUNTS = ("usd_per_hour",)


def damage_of(parts: Parts) -> str | None:
    """As "instances.usd_per_hour is '2,0'", of the box that counts now; None: nothing."""
    if (box := parts.attempt) is None:
        return None
    rows = [("instances", box)]
    rows += [("timers", row) for row in parts.timers[box["label"]]]
    rows += [("guards", row) for row in parts.guards[box["label"]]]
    return ", ".join(found for table, row in rows for found in _bad(table, row)) or None


def _bad(table: str, row: Row) -> Iterator[str]:
    for name, value in row.items():
        cell = f"{table}.{name}"
        holds = _check(cell)
        if value is not None and holds is not None and not holds(value):
            yield f"{cell} is {value!r}"


def _check(cell: str) -> Callable[[Any], bool] | None:
    if cell in WORDS:
        return WORDS[cell].__contains__
    if cell.endswith(INSTANTS):
        return lambda value: instant(value) is not None
    if cell.endswith(SECONDS):
        return lambda value: isinstance(value, int | float) and math.isfinite(value)
    if cell.endswith(AMOUNTS):
        return lambda value: amount(value) is not None
    if ".seq" in cell:
        return lambda value: isinstance(value, int)
    return None
