"""`python -m benchmarks.keeper`: what the keeper costs when idle, and how soon it acts.

The floor, a bare Python process, is measured in the same run.  Limits are those of the project's
issue for the spine: 110 MB, 0.5 % of a core, two seconds.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from datetime import datetime
from pathlib import Path

from gpurun import keeper
from gpurun.clock import Deadline, SystemClock
from tests.homes import WAITS, Home

CLOCK = SystemClock()
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--idle-s", type=float, default=30)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    rows: list[tuple[str, str, str]] = [("a bare Python, RSS", f"{_bare_mb():.0f} MB", "")]
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        try:
            rows += _idle(home, options.idle_s)
            acts = [_reactions(home) for _ in range(options.runs)]
        finally:
            home.close()
    for name, limit_s in (("SIGTERM after fires_at", 2), ("processes gone after ends_at", 2)):
        rows.append(_row(name, [act[name] for act in acts], limit_s))
    rows.append(_row("kill --no-collect: gone", [a["kill --no-collect: gone"] for a in acts], 2))
    for what, figure, limit in rows:
        print(f"{what:<32} {figure:>24}   {limit}")


def _idle(home: Home, seconds: float) -> list[tuple[str, str, str]]:
    home.places.ensure()
    os.environ.update(home.env)
    pid = keeper.start(home.places)
    assert pid is not None
    wait(5)  # what it does once, at its start, is not idling
    before_s, began_s = cpu_s(pid), CLOCK.boot_s()
    wait(seconds)
    share = (cpu_s(pid) - before_s) / (CLOCK.boot_s() - began_s)
    return [
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
