"""metrics.jsonl of a run that goes on: a line for each step that counts, and each of them once."""

import json
from pathlib import Path
from typing import Any

from remote.files import appearing

UNDONE = "metrics.undone.jsonl"


def go_on_from(path: Path, step: int) -> None:
    """Leave in it what the checkpoint of `step` has seen, and move the rest to UNDONE beside it.

    What came after that checkpoint is done again; a line that a kill has cut off is dropped.
    """
    if not path.exists():
        return
    content = path.read_bytes()
    lines = [(line, said) for line in content.split(b"\n") if (said := _parsed(line)) is not None]
    end = _end_of(step, [said for _, said in lines])
    kept, undone = ([line for line, _ in part] for part in (lines[:end], lines[end:]))
    if undone:
        with path.with_name(UNDONE).open("ab") as file:
            file.write(_joined(undone))
    if content != _joined(kept):
        with appearing(path) as partial:
            partial.write_bytes(_joined(kept))


def _end_of(step: int, lines: list[dict[str, Any]]) -> int:
    """How many lines come before the checkpoint of `step`, and its own; where it has none, up to
    that step."""
    for number in range(len(lines), 0, -1):
        line = lines[number - 1]
        if line.get("event") == "checkpoint" and line.get("step") == step:
            return number
    later = (n for n, line in enumerate(lines) if line.get("step", 0) > step)
    return next(later, len(lines))


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def _joined(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)
