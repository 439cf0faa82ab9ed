"""How much CPU the two commands cost that people run all day, beside a bare Python.

`python -m benchmarks.cli` measures `--help` and `status` with 1,000 runs in the database, and
`report --since` with 10,000;
`--install` adds what an install without torch weighs.  CPU time, best of ten: wall time on a busy
machine says more about its neighbours.
"""

import argparse
import compileall
import importlib.metadata
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpurun.clock import SystemClock
from gpurun.places import Places
from gpurun.store import Journal
from tests.stories import Story

ROOT = Path(__file__).resolve().parent.parent
RUNS, MANY_RUNS = 1000, 10_000
BEST_OF = 10
TARGETS_MS = {"gpurun --help": 100, "gpurun status": 200}
TARGET_MB, TARGET_DISTRIBUTIONS = 130, 45
FIRST = "r0000000"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cli", description=__doc__)
    parser.add_argument("--install", action="store_true", help="also weigh an install")
    wanted = parser.parse_args(arguments)
    for package in ("gpurun", "provisioners"):
        compileall.compile_dir(ROOT / package, quiet=1)
    rows, missed = _cpu_rows()
    if wanted.install:
        row, heavy = _install_row()
        rows.append(row)
        missed |= heavy
    _print(rows)
    return int(missed)


def many_runs(home: Path, count: int) -> None:
    """A journal of finished runs, all alike: one goes the whole way, the rest are its copies."""
    clock = SystemClock()
    journal = Journal(Places(home).ensure().database, clock)
    journal.database.migrate()
    _whole_way(Story(journal, clock, FIRST))
    journal.close()
    with sqlite3.connect(Places(home).database) as database:
        for table in ("runs", "instances", "timers", "guards", "phases", "ledger", "events"):
            _copied(database, table, count)


def cpu_ms(command: Sequence[str], home: Path, times: int = BEST_OF) -> tuple[float, float]:
    """Best CPU and best wall milliseconds of a command."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"GPURUN_HOME": str(home)}
    clock, cpu, wall = SystemClock(), [], []
    for _ in range(times):
        began_s = clock.boot_s()
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)} exited {process.returncode}")
        wall.append((clock.boot_s() - began_s) * 1000)
        cpu.append((used.ru_utime + used.ru_stime) * 1000)
    return min(cpu), min(wall)


def _cpu_rows() -> tuple[list[tuple[str, str, str, str]], bool]:
    gpurun = [sys.executable, "-m", "gpurun.cli"]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        many_runs(home, RUNS)
        measured = {
            "python -c pass": cpu_ms([sys.executable, "-c", "pass"], home),
            "gpurun --help": cpu_ms([*gpurun, "--help"], home),
            "gpurun status": cpu_ms([*gpurun, "status"], home),
            f"gpurun status --all ({RUNS:,} runs)": cpu_ms([*gpurun, "status", "--all"], home),
        }
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        many_runs(home, MANY_RUNS)
        since = [*gpurun, "report", "--since", "30d"]
        measured[f"gpurun report --since 30d ({MANY_RUNS:,} runs)"] = cpu_ms(since, home)
    rows = [
        (name, f"{cpu:.0f} ms", f"{wall:.0f} ms", f"{TARGETS_MS[name]} ms" * (name in TARGETS_MS))
        if name in TARGETS_MS
        else (name, f"{cpu:.0f} ms", f"{wall:.0f} ms", "")
        for name, (cpu, wall) in measured.items()
    ]
    return rows, any(measured[name][0] > limit for name, limit in TARGETS_MS.items())


def _install_row() -> tuple[tuple[str, str, str, str], bool]:
    """What gpurun and all that it requires weigh, without extras; pip itself is not ours."""
    names, todo = set[str](), ["gpurun"]
    while todo:
        name = todo.pop().lower().replace("_", "-")
        if name in names:
            continue
        names.add(name)
        for line in importlib.metadata.requires(name) or []:
            if "extra ==" not in line and _applies(line):
                todo.append(re.split(r"[ ;<>=!~\[(]", line, maxsplit=1)[0])
    size_mb = sum(_bytes(name) for name in names) / 1e6
    heavy = size_mb > TARGET_MB or len(names) > TARGET_DISTRIBUTIONS
    limits = f"{TARGET_MB} MB, {TARGET_DISTRIBUTIONS}"
    return ("install without torch", f"{size_mb:.0f} MB", f"{len(names)} packages", limits), heavy


def _applies(requirement: str) -> bool:
    """Only markers about other systems and Pythons stand between us and a requirement."""
    name = re.split(r"[ ;<>=!~\[(]", requirement, maxsplit=1)[0]
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _bytes(name: str) -> int:
    files = importlib.metadata.distribution(name).files or []
    paths = [Path(str(file.locate())) for file in files]
    size = sum(path.stat().st_size for path in paths if path.exists())
    if name == "gpurun":  # an editable install lists no files of its own
        sources = [
            f for p in ("gpurun", "provisioners", "remote") for f in (ROOT / p).rglob("*.py")
        ]
        size = max(size, sum(file.stat().st_size for file in sources))
    return size


def _whole_way(story: Story) -> None:
    story.rented(minutes=60).watched()
    journal, label = story.journal, story.label
    for phase in ("boot", "accept", "ship", "setup", "data", "verify", "arm", "train", "collect"):
        row = story.phase(phase)
        journal.ledger.book(label, phase)
        journal.runs.end_phase(row, "ok")
    story.gone()


def _copied(database: sqlite3.Connection, table: str, count: int) -> None:
    found = database.execute(f"SELECT * FROM {table}")
    columns = [column[0] for column in found.description]
    numbered = "id" in columns and table != "runs"
    rows = [dict(zip(columns, row, strict=True)) for row in found]
    copies = [
        tuple(
            None
            if numbered and name == "id"
            else value.replace(FIRST, f"r{number:07}")
            if isinstance(value, str)
            else value
            for name, value in row.items()
        )
        for number in range(1, count)
        for row in rows
    ]
    marks = ", ".join("?" * len(columns))
    database.executemany(f"INSERT INTO {table} VALUES ({marks})", copies)


def _print(rows: Sequence[tuple[str, str, str, str]]) -> None:
    for row in [("command", "CPU, best of 10", "wall, best", "at most"), *rows]:
        print(f"{row[0]:<44}{row[1]:>16}{row[2]:>14}{row[3]:>14}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
