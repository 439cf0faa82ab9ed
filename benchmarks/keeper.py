"""`python -m benchmarks.keeper`: what the keeper costs, idle and with many live runs, and how soon
it acts.

The floor, a bare Python process, is measured in the same run.  Limits are those of the project's
issues: idle 110 MB and 0.5 % of a core; with 1,000 live runs (timers and lists, no open SSH)
220 MB and 10 %; two seconds for every timer.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from datetime import datetime
from pathlib import Path

from benchmarks.crowd import crowd
from gpurun import keeper
from gpurun.clock import Deadline, SystemClock
from tests.homes import WAITS, Home

CLOCK = SystemClock()
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
SETTLES_S = 15.0  # what the keeper does once, at its start
LISTED_WITHIN_S = 150.0  # a thousand boxes of a Vast account, 25 a second
TIMED, APART_S = 5, 8.0  # so many timers are due, so far apart


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--idle-s", type=float, default=30)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--live", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--live-s", type=float, default=60)
    parser.add_argument("--only-live", action="store_true")
    parser.add_argument("--together", type=int, default=0, help="so many are due at one moment")
    options = parser.parse_args()
    rows = [] if options.only_live else _of_one(options.idle_s, options.runs)
    for size in options.live:
        rows += _of_many(size, options.live_s)
    if options.together:
        rows += _of_all(options.together)
    for what, figure, limit in rows:
        print(f"{what:<32} {figure:>24}   {limit}")


def _of_one(idle_s: float, runs: int) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = [("a bare Python, RSS", f"{_bare_mb():.0f} MB", "")]
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        try:
            rows += _idle(home, idle_s)
            acts = [_reactions(home) for _ in range(runs)]
        finally:
            home.close()
    for name, limit_s in (("SIGTERM after fires_at", 2), ("processes gone after ends_at", 2)):
        rows.append(_row(name, [act[name] for act in acts], limit_s))
    rows.append(_row("kill --no-collect: gone", [a["kill --no-collect: gone"] for a in acts], 2))
    return rows


def _of_many(size: int, seconds: float) -> list[tuple[str, str, str]]:
    """Its share of a core over a steady while, then the timers of a few runs."""
    ends_in_s = [SETTLES_S + seconds + APART_S * number for number in range(1, TIMED + 1)]
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        os.environ.update(home.env)
        try:
            with crowd(home, size, ends_in_s, CLOCK) as made:
                pid = keeper.start(home.places)
                assert pid is not None
                wait(SETTLES_S)
                before_s, began_s = cpu_s(pid), CLOCK.boot_s()
                wait(seconds)
                share = (cpu_s(pid) - before_s) / (CLOCK.boot_s() - began_s)
                resident_mb = rss_mb(pid)
                wait(APART_S * (TIMED + 1) + made.fill_s)
                fired_s, deleted_s = made.lateness(home.places.database)
        finally:
            home.close()
    what = f"{size} live"
    most = "at most 220 MB", "at most 10 %"
    return [
        (f"{what}, RSS", f"{resident_mb:.0f} MB", most[0]),
        (f"{what}, CPU", f"{100 * share:.2f} % of a core", most[1]),
        _row(f"{what}, fired after fires_at", fired_s, 2),
        _row(f"{what}, DELETE after ends_at", deleted_s, 2),
    ]


def _of_all(size: int) -> list[tuple[str, str, str]]:
    """All their timers end at one moment, after the keeper has listed them all."""
    ends_in_s = SETTLES_S + LISTED_WITHIN_S
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        os.environ.update(home.env)
        try:
            with crowd(home, size, [ends_in_s] * size, CLOCK) as made:
                assert keeper.start(home.places) is not None
                deadline = Deadline(ends_in_s + 60, poll_s=0.2)
                while made.rows and not deadline.passed():
                    pass
                fired_s, deleted_s = made.lateness(home.places.database)
        finally:
            home.close()
    return [
        _row(f"{size} due together, {len(fired_s)} fired", fired_s, 2),
        _row(f"{size} due together, DELETE", deleted_s, 2),
    ]


def _idle(home: Home, seconds: float) -> list[tuple[str, str, str]]:
    home.places.ensure()
    os.environ.update(home.env)
    pid = keeper.start(home.places)
    assert pid is not None
    while "the keeper is up" not in home.places.keeper_log.read_text():
        wait(0.05)
    started_s = cpu_s(pid)
    wait(5)  # what it does once, at its start, is not idling
    before_s, began_s = cpu_s(pid), CLOCK.boot_s()
    wait(seconds)
    share = (cpu_s(pid) - before_s) / (CLOCK.boot_s() - began_s)
    return [
        ("keeper until it is up, CPU", f"{started_s:.2f} s", "back within 2 s"),
        ("keeper idle, RSS", f"{rss_mb(pid):.0f} MB", "at most 110 MB"),
        ("keeper idle, CPU", f"{100 * share:.2f} % of a core", "at most 0.5 %"),
    ]


def _reactions(home: Home) -> dict[str, float]:
    """Seconds from the moment on the clock until it was seen to happen."""
    found: dict[str, float] = {}
    train = 'mkdir -p out; trap "date +%s.%N > out/termed; sleep 60" TERM\n'
    train += "while :; do sleep 0.05; done"
    run = home.up(home.recipe(train=train, run_minutes=0.08, grace_minutes=0.08))
    home.until_phase(run, "train")
    timer = home.document(run)["timer"]
    home.until(lambda: home.box_processes() == [], 40)
    gone_s = CLOCK.now().timestamp()
    home.until_finished(run)
    termed = next((home.work / "runs" / run).rglob("termed"), None)
    termed = termed or next((home.places.salvage).rglob("termed"))
    found["SIGTERM after fires_at"] = float(termed.read_text()) - _instant_s(timer["fires_at"])
    found["processes gone after ends_at"] = max(0.0, gone_s - _instant_s(timer["ends_at"]))
    run = home.up(home.recipe(train=WAITS))
    home.until_phase(run, "train")
    home.until(lambda: bool(home.box_processes()))
    began_s = CLOCK.boot_s()
    killing = home.start("kill", run, "--yes", "--no-collect")
    home.until(lambda: home.box_processes() == [], 30)
    found["kill --no-collect: gone"] = CLOCK.boot_s() - began_s
    killing.communicate()
    home.until_finished(run)
    return found


def _row(name: str, seconds: list[float], limit_s: float) -> tuple[str, str, str]:
    figure = f"{statistics.median(seconds):.2f} s (max {max(seconds):.2f})"
    return name, figure, f"at most {limit_s:.0f} s"


def _bare_mb() -> float:
    """The floor: what a Python process that does nothing holds."""
    bare = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        wait(2)
        return rss_mb(bare.pid)
    finally:
        bare.kill()
        bare.communicate()


def rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def _instant_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def wait(seconds: float) -> None:
    deadline = Deadline(seconds, poll_s=0.2)
    while not deadline.passed():
        pass


if __name__ == "__main__":
    main()
