"""The checkpoints of a run: which are there, and which of them are kept."""

import json
import shutil
from pathlib import Path

SCORE = "score.json"


def make_room(run: Path, *, keep_last: int, keep_best: int) -> bool:
    """Whether some was made: where the disk has none for another one, only the newest stays, and
    the best; never if all are to be kept."""
    found = steps(run)
    if not keep_last or len(found) < 2:
        return False
    newest_bytes = sum(path.stat().st_size for path in found[-1].iterdir())
    if shutil.disk_usage(run).free > newest_bytes:
        return False
    prune(run, keep_last=1, keep_best=keep_best)
    return len(steps(run)) < len(found)


def steps(run: Path) -> list[Path]:
    """Checkpoints that were written to the end, oldest first."""
    return sorted(filter(is_step, run.glob("step_*")), key=number)


def prune(run: Path, *, keep_last: int, keep_best: int) -> None:
    """`keep_last` 0 keeps all."""
    found = steps(run)
    if not keep_last:
        return
    rated = [(score, step) for step in found if (score := _score(step)) is not None]
    # Of equally good ones the newest.
    rated.sort(key=lambda pair: (pair[0], number(pair[1])), reverse=True)
    kept = {*found[-keep_last:], *(step for _, step in rated[:keep_best])}
    for step in found:
        if step not in kept:
            shutil.rmtree(step, ignore_errors=True)


def is_step(path: Path) -> bool:
    return path.name.startswith("step_") and path.name[5:].isdigit() and path.is_dir()


def number(step: Path) -> int:
    return int(step.name[5:])


def _score(step: Path) -> float | None:
    """The greater the better."""
    try:
        found = json.loads((step / SCORE).read_text())
        value = float(found["value"])
        return -value if found["metric"].endswith("loss") else value
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
