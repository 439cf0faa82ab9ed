"""The keeper's process: who becomes it, and what one costs that does not."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun import keeper
from gpurun.clock import SystemClock
from gpurun.keeper.serve import LOCKED
from gpurun.locks import hold
from tests.homes import Home
from tests.stories import Story, journal_at

HEAVY = {"alembic", "apscheduler", "httpx", "pydantic", "sqlalchemy", "sqlmodel"}
LOSES = """
import json, resource, sys
from gpurun.keeper.serve import serve
code = serve()
print(json.dumps({"code": code, "modules": sorted(sys.modules),
                  "cpu_s": resource.getrusage(resource.RUSAGE_SELF).ru_utime}))
"""


def test_a_second_keeper_ends_before_it_imports_anything_heavy(home: Home) -> None:
    with hold(home.places.keeper_lock):
        done = subprocess.run(
            [sys.executable, "-c", LOSES], env=home.env, capture_output=True, text=True, check=True
        )
    found = json.loads(done.stdout)
    print(f"{found['cpu_s']:.2f} CPU-s")
    assert found["code"] == LOCKED
    assert HEAVY.isdisjoint(found["modules"])


def test_its_parent_does_not_start_it_again(home: Home) -> None:
    with hold(home.places.keeper_lock):
        done = subprocess.run([sys.executable, "-m", "gpurun.keeper"], env=home.env, check=False)
    assert done.returncode == LOCKED


def born_s(pid: int) -> float:
    """Since boot, as the kernel has written it down; suspended time included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def test_a_keeper_that_is_killed_has_a_successor_within_two_seconds(home: Home) -> None:
    assert home.run("keeper", "start").returncode == 0
    first = keeper.running(home.places)
    assert first is not None
    killed_s = SystemClock().boot_s()
    os.kill(first, signal.SIGKILL)
    home.until(lambda: keeper.running(home.places) not in (None, first), 120)
    successor = keeper.running(home.places)
    assert successor is not None
    took_s = born_s(successor) - killed_s
    print(f"after {took_s:.2f} s")
    assert took_s < 2


@pytest.fixture
def live(home: Home) -> Iterator[Home]:
    """A run with a timer and a driver, and no keeper."""
    journal = journal_at(home.places.root, SystemClock())
    run = Story(journal, SystemClock()).rented(minutes=600).run_id
    journal.close()
    with hold(home.places.run_lock(run)):
        yield home


@pytest.mark.parametrize(
    "words", ["status", "keeper status", "keeper status --json", "recipes list", "notify test"]
)
def test_whatever_the_command_a_keeper_is_started_where_one_is_needed(
    live: Home, words: str
) -> None:
    live.run(*words.split())
    assert live.places.keeper_log.exists(), "at once"
    live.until(lambda: keeper.running(live.places) is not None, 120)


@pytest.mark.parametrize("words", ["--version", "--help", "status --help", "keeper status --help"])
def test_to_ask_for_help_starts_none(live: Home, words: str) -> None:
    assert live.run(*words.split()).returncode == 0
    assert not live.places.keeper_log.exists()


def test_no_keeper_is_started_by_its_status_where_nothing_is_live(home: Home) -> None:
    assert home.run("keeper", "status").returncode == 0
    assert not home.places.keeper_log.exists()
