"""Money, durations and tables as plain text."""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TextIO

NONE = "-"
GAP = "  "
CODES = {"red": "31", "green": "32", "yellow": "33", "dim": "2", "bold": "1"}


@dataclass(frozen=True, slots=True)
class Look:
    """How wide the reader's page is, and whether it has colours."""

    columns: int | None = None  # None: as wide as need be
    colour: bool = False

    @classmethod
    def of(cls, stream: TextIO = sys.stdout) -> "Look":
        if not stream.isatty():
            return cls()
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        return cls(shutil.get_terminal_size().columns, not plain)

    def paint(self, text: str, colour: str) -> str:
        return f"\x1b[{CODES[colour]}m{text}\x1b[0m" if self.colour and colour else text


def money(amount: Decimal | str | None) -> str:
    """Cents, with the dollar sign; a rate's further digits are the caller's."""
    if amount is None:
        return NONE
    value = Decimal(amount)
    return f"{'-' if value < 0 else ''}${abs(value):.2f}"


def duration(seconds: float | None) -> str:
    """0:42, 12:34, 1:02:03, 2d 1:02:03."""
    if seconds is None:
        return NONE
    minutes, rest_s = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}:{minutes:02}:{rest_s:02}"
    return f"{hours}:{minutes:02}:{rest_s:02}" if hours else f"{minutes}:{rest_s:02}"


def local_time(iso: str | None) -> str:
    """An instant of a document on the reader's own clock, with its day: a run may take weeks."""
    if iso is None:
        return NONE
    return f"{datetime.fromisoformat(iso).astimezone():%b %d %H:%M:%S}"


def size(count: int) -> str:
    """Bytes in decimal units."""
    amount, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while amount >= 1000 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{count} B" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def printable(text: str) -> str:
    """What a box has named, on one line and without what steers a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    look: Look = Look(),
    *,
    right: Sequence[int] = (),
    spare: Sequence[int] = (),
) -> list[str]:
    """Aligned columns.  Too wide for the page: the columns in `spare` go, the first one first."""
    dropped: set[int] = set()
    while True:
        kept = [at for at in range(len(head)) if at not in dropped]
        lines = _aligned(head, rows, kept, right)
        too_wide = look.columns is not None and max(map(len, lines)) > look.columns
        left = [at for at in spare if at not in dropped]
        if not (too_wide and left):
            return lines
        dropped.add(left[0])


def cut(text: str, look: Look) -> str:
    """One line, no wider than the page."""
    flat = " ".join(text.split("\n"))
    if look.columns is None or len(flat) <= look.columns:
        return flat
    return flat[: max(0, look.columns - 1)] + "…"


def _aligned(
    head: Sequence[str], rows: Sequence[Sequence[str]], kept: list[int], right: Sequence[int]
) -> list[str]:
    widths = {at: max(len(row[at]) for row in [head, *rows]) for at in kept}
    return [
        GAP.join(
            row[at].rjust(widths[at]) if at in right else row[at].ljust(widths[at]) for at in kept
        ).rstrip()
        for row in [head, *rows]
    ]
