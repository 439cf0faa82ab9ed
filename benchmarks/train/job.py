"""What a worker is asked to measure, and what it found: JSON files between two interpreters.

Imported by the worker that runs upstream's code too, so it needs the standard library only.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Job:
    settings: dict[str, str]  # as in `key=value`
    data: str
    device: str
    warmup: int
    steps: int  # timed ones
    evaluates: bool
    shared: str  # a directory: the initial weights and the batches of both sides


@dataclass(slots=True)
class Found:
    losses: list[float] = field(default_factory=list)
    first_step_s: float = 0.0  # with compiling
    wall_s: float = 0.0  # of the timed steps together
    cpu_s: float = 0.0
    evaluation_s: float = 0.0
    evaluation_cpu_s: float = 0.0
    evaluated_rows: int = 0
    peak_gib: float = 0.0
    optimiser: str = ""


def measure(
    job: Job, found: Found, step: Callable[[int], float | None], wait: Callable[[], None]
) -> None:
    """`step(n)` trains on batch n and returns its loss where that costs no waiting."""
    began_s = time.perf_counter()
    for number in range(job.warmup):
        _keep(found, step(number))
        if number == 0:
            wait()
            found.first_step_s = time.perf_counter() - began_s
    wait()
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for number in range(job.warmup, job.warmup + job.steps):
        _keep(found, step(number))
    wait()
    found.wall_s = time.perf_counter() - began_s
    found.cpu_s = time.process_time() - began_cpu_s


def largest_difference(ours: Found, theirs: Found) -> float:
    """Relative; on a GPU one side reports means of ten steps, so there it is of their ends only."""
    if len(ours.losses) != len(theirs.losses):
        return abs(ours.losses[-1] / (sum(theirs.losses[-10:]) / 10) - 1)
    return max(abs(a / b - 1) for a, b in zip(ours.losses, theirs.losses, strict=True))


def read(path: str) -> Job:
    return Job(**json.loads(Path(path).read_text()))


def read_found(path: Path) -> Found:
    return Found(**json.loads(path.read_text()))


def write(path: Path, content: Job | Found) -> None:
    path.write_text(json.dumps(asdict(content)))


def _keep(found: Found, loss: float | None) -> None:
    if loss is not None:
        found.losses.append(loss)
