"""What a training says of itself: lines of a metrics file, or a pattern over its log.

A box may say anything: what comes out of here are short names with plain values.
"""

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

MOST = 1e18
COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
}
_RULE = re.compile(r"\s*([^\s<>=]+)\s*(>=|<=|==|>|<)\s*(\S+)\s*$")
_ENDS = re.compile(rb"[\r\n]")  # a progress bar ends its lines with a carriage return
_WANDB = re.compile(r"wandb: .{0,40}?(https?://[\x21-\x7e]{1,200}/runs/[\w-]{1,100})")


def number(value: object) -> int | float | None:
    """What a box says is a number only if it is a finite one of a sensible size."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < MOST else None


def is_broken(value: object) -> bool:
    """Whether this is a loss that a training does not come back from: NaN or infinite."""
    return isinstance(value, float) and not math.isfinite(value)


def from_json(texts: Iterable[str]) -> list[dict[str, Any]]:
    """The lines that are JSON objects; the rest is half written, or nonsense."""
    lines = []
    for text in texts:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            lines.append(line)
    return lines


def from_log(pattern: str, text: str) -> list[dict[str, Any]]:
    """The named groups of every match; `total` is short for total_steps."""
    return [_named(match.groupdict()) for match in re.finditer(pattern, text)]


def wandb_run(text: str) -> str | None:
    """The address that wandb prints of a run."""
    matched = _WANDB.search(text)
    return matched.group(1) if matched else None


def holds(rule: str, said: Mapping[str, Any]) -> bool:
    """Whether `METRIC OP NUMBER` holds of the newest values; an unknown metric does not."""
    matched = _RULE.match(rule)
    if matched is None:
        return False
    name, op, limit = matched.groups()
    value = number(said.get(name))
    return value is not None and COMPARE[op](float(value), float(limit))


class Lines:
    """Whole lines out of chunks that are cut anywhere."""

    LONGEST = 65_536

    def __init__(self) -> None:
        self._rest = b""

    def take(self, chunk: bytes) -> str:
        """What is whole by now; a line without end is given out in pieces."""
        data = self._rest + chunk
        last = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if last == 0 and len(data) > self.LONGEST:
            last = len(data)
        whole, self._rest = data[:last], data[last:]
        return _ENDS.sub(b"\n", whole).decode(errors="replace")

    def rest(self) -> str:
        """What was last said without ending the line: nothing more will come."""
        text, self._rest = self._rest.decode(errors="replace"), b""
        return text


def _named(groups: Mapping[str, str | None]) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for name, text in groups.items():
        if text is not None:
            said["total_steps" if name == "total" else name] = _parsed(text)
    return said


def _parsed(text: str) -> int | float | str:
    if re.fullmatch(r"[-+]?\d{1,18}", text):
        return int(text)
    try:
        return float(text)  # "nan" and "inf" too: of a loss they are news
    except ValueError:
        return text
