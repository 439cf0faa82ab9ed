"""What a recipe took the last time that it trained: its own history is the best forecast."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from gpurun.budget import cost
from gpurun.glance import money
from gpurun.glance.reader import Reader, Row, Unreadable
from gpurun.glance.rows import gather, instant, iso, parsed
from gpurun.model import RunState
from gpurun.places import Places

LOOK_BACK = 50  # runs of the recipe
TRAINED = (RunState.DONE, RunState.DEADLINE)


@dataclass(frozen=True, slots=True)
class LastTime:
    """One run of the recipe that trained to its end, or until its timer."""

    run_id: str
    began_at: datetime | None
    gpu: str | None
    gpu_count: int
    train_s: float  # as long as it trained
    usd: Decimal  # the whole run
    it_per_s: float | None
    step: float | None
    total_steps: float | None
    finished: bool
    train: object  # what the recipe said of its training then

    def needs_s(self) -> float | None:
        """Of training, to all of its steps; None where that is not known."""
        if self.finished:
            return self.train_s
        if not (self.step and self.total_steps) or self.step <= 0:
            return None
        return self.train_s * max(1.0, self.total_steps / self.step)


def last_time(
    home: Path, recipe: str, gpu: str | None, gpu_count: int, now: datetime
) -> LastTime | None:
    """The newest run of the recipe on these GPUs, else on others; None if it has never trained.

    None too when the journal cannot be read: a plan does not fail for its history.
    """
    try:
        with Reader(Places(home).database) as reader:
            return _found(reader, recipe, (gpu, gpu_count), now)
    except Unreadable:
        return None


def words(last: LastTime) -> str:
    """As "3.1 it/s on 4x H100 80GB SXM, 2 h 10 min of training, $16.40"."""
    speed = f"{last.it_per_s:.3g} it/s " if last.it_per_s else ""
    where = f"{last.gpu_count}x {last.gpu}" if last.gpu else "a machine without a GPU"
    cut = ""
    if not last.finished and last.step is not None and last.total_steps:
        cut = f"; its timer came at step {last.step:,.0f} of {last.total_steps:,.0f}"
    took = f"{_hours(last.train_s)} of training, ${money.cents(last.usd)}"
    return f"{speed}on {where}, {took}{cut}"


def shortfall(
    last: LastTime,
    gpu: str | None,
    gpu_count: int,
    train: object,
    run_s: float,
    usd_per_hour: Decimal,
) -> str:
    """Of the same training on the same GPUs: what its timer would cut off of it this time."""
    needs_s = last.needs_s()
    same = (last.gpu, last.gpu_count, last.train) == (gpu, gpu_count, train)
    if not same or needs_s is None or needs_s <= run_s:
        return ""
    more_s = needs_s - run_s
    at = ""
    if last.total_steps:
        at = f"at about step {last.total_steps * run_s / needs_s:,.0f} of {last.total_steps:,.0f}; "
    usd = money.cents(cost(usd_per_hour, more_s))
    return (
        f"at that speed it will not finish before its timer: {at}{_hours(more_s)} and ${usd} more"
    )


def document(last: LastTime) -> dict[str, Any]:
    return {
        "run": last.run_id,
        "began_at": iso(last.began_at),
        "gpu": last.gpu,
        "gpu_count": last.gpu_count,
        "it_per_s": last.it_per_s,
        "train_s": round(last.train_s, 1),
        "usd": str(money.cents(last.usd)),
        "step": _whole(last.step),
        "total_steps": _whole(last.total_steps),
        "finished": last.finished,
    }


def _found(
    reader: Reader, recipe: str, wanted: tuple[str | None, int], now: datetime
) -> LastTime | None:
    runs = reader.rows(
        "runs",
        f"WHERE recipe_name = ? AND state IN (?, ?) ORDER BY created_at DESC LIMIT {LOOK_BACK}",
        [recipe, *TRAINED],
    )
    trained = [row for row in runs if _steps(row)[0] is not None or row["state"] == RunState.DONE]
    boxes: dict[str, Row] = {}
    for box in reader.of("instances", "run_id", [str(row["id"]) for row in trained]):
        boxes[str(box["run_id"])] = box  # its last one
    trained = [row for row in trained if row["id"] in boxes]
    alike = [row for row in trained if _gpus(boxes[row["id"]]) == wanted]
    for row in [*alike, *trained]:
        if last := _of(reader, row, boxes[row["id"]], now):
            return last
    return None


def _of(reader: Reader, run: Row, box: Row, now: datetime) -> LastTime | None:
    parts = gather(reader, [run])[0]
    booked = [
        (at - since).total_seconds()
        for row in parts.ledger
        if row.get("kind") == "accrue" and row.get("phase") == "train"
        if (at := instant(row.get("at"))) and (since := instant(row.get("since")))
    ]
    train = parsed(run.get("recipe_json"), {}).get("train")
    if train is None or sum(booked) <= 0:  # a box for people: it never trained
        return None
    step, total_steps = _steps(run)
    gpu, gpu_count = _gpus(box)
    return LastTime(
        run_id=str(run["id"]),
        began_at=instant(run.get("created_at")),
        gpu=gpu,
        gpu_count=gpu_count,
        train_s=sum(booked),
        usd=money.spent_usd(parts, now),
        it_per_s=_speed(run),
        step=step,
        total_steps=total_steps,
        finished=run["state"] == RunState.DONE,
        train=train,
    )


def _steps(run: Row) -> tuple[float | None, float | None]:
    progress = parsed(run.get("progress_json"), {})
    return _figure(progress.get("step")), _figure(progress.get("total_steps"))


def _speed(run: Row) -> float | None:
    """Over its last minutes, else as it last said."""
    progress = parsed(run.get("progress_json"), {})
    kept = progress.get("kept")
    pace = kept.get("pace") if isinstance(kept, dict) else None
    if isinstance(pace, dict):
        steps, seconds = _figure(pace.get("steps")), _figure(pace.get("seconds"))
        if steps and seconds:
            return steps / seconds
    return _figure(progress.get("it_per_s"))


def _gpus(box: Row) -> tuple[str | None, int]:
    count = box.get("gpu_count")
    return box.get("gpu") or None, count if isinstance(count, int) else 0


def _figure(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < 1e18 else None


def _whole(figure: float | None) -> int | None:
    return None if figure is None else int(figure)


def _hours(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    if not hours:
        return f"{minutes} min" if minutes else f"{seconds:.0f} s"
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
