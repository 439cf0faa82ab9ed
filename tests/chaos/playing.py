"""Schedules side by side: each mostly waits."""

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.judge import Passing, Verdict, judge, passings
from tests.chaos.schedule import Schedule
from tests.chaos.stage import played

SIDE_BY_SIDE = {"local": 6, "vast": 3, "prime": 3}


@dataclass(frozen=True, slots=True)
class Result:
    schedule: Schedule
    verdict: Verdict
    passed: tuple[Passing, ...]
    seconds: float
    logs: str


def play(schedule: Schedule) -> Result:
    """One schedule in a folder of its own, judged."""
    root = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        with played(schedule, root) as end:
            verdict = judge(schedule, end)
            logs = "" if verdict.clean else end.told()
            return Result(schedule, verdict, tuple(passings(end.machine)), end.seconds, logs)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def play_all(schedules: Iterable[Schedule], side_by_side: int | None = None) -> Iterator[Result]:
    """Each result as it comes."""
    wanted = list(schedules)
    if not wanted:
        return
    width = side_by_side or SIDE_BY_SIDE[wanted[0].provider]
    with ThreadPoolExecutor(width, thread_name_prefix="schedule") as pool:
        pending = [pool.submit(play, schedule) for schedule in wanted]
        try:
            for done in as_completed(pending):
                yield done.result()
        finally:  # whoever stops early waits only for those that have begun
            pool.shutdown(wait=False, cancel_futures=True)
