"""Caps on all runs, reserved against by many processes at the same moment (I4, F44)."""

import subprocess
import sys
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from gpurun.clock import SystemClock
from gpurun.engine.limits import period_caps
from gpurun.settings import Settings
from tests.stories import Story, journal_at

AT_ONCE = 4
RENTS = """
import sys
from decimal import Decimal
from pathlib import Path

from gpurun.clock import SystemClock
from gpurun.engine.limits import caps_of
from gpurun.model import Budget
from gpurun.places import Places
from gpurun.settings import load
from gpurun.store import Journal, OverCap
from tests.stories import Story

home, run_id, provider = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
clock = SystemClock()
journal = Journal(Places(home).database, clock, busy_timeout_s=60)
story = Story(journal, clock, run_id, provider=provider)
epoch = journal.runs.take(run_id)
budget = Budget(Decimal(10), Decimal(13), 600, 600, 60, 600)
caps = caps_of(load(), budget, provider, clock.now(), new_usd_per_hour=story.usd_per_hour)
print("ready", flush=True)
sys.stdin.readline()
try:
    journal.attempts.intend(
        story.attempt(), story.timer(1, 10), [("keeper", True)], Decimal("1.00"), caps, epoch
    )
except OverCap as error:
    print(error)
else:
    print("reserved")
"""


@pytest.mark.parametrize(
    ("settings", "name", "reserved"),
    [
        ("max_usd_per_day = 2.50", "max_usd_per_day is $2.50", 2),
        ("max_usd_per_month = 3", "max_usd_per_month is $3.00", 3),
        ("max_usd_per_day_at = {vast = 1.99}", "max_usd_per_day_at.vast is $1.99", 1),
        ("max_usd_per_month_at = {vast = 2}", "max_usd_per_month_at.vast is $2.00", 2),
        ("max_concurrent_usd_per_hour = 10.80", "max_concurrent_usd_per_hour is $10.80", 3),
    ],
    ids=["day", "month", "day at", "month at", "an hour"],
)
def test_of_many_that_reserve_at_once_the_cap_pays_for_so_many(
    tmp_path: Path, settings: str, name: str, reserved: int
) -> None:
    """Each its own process, which waits for a word with all that it needs in its hand."""
    clock = SystemClock()
    journal = journal_at(tmp_path, clock)
    run_ids = [f"run{number:05}" for number in range(AT_ONCE)]
    for run_id in run_ids:
        journal.runs.add(Story(journal, clock, run_id, provider="vast").run())
    config = tmp_path / "config.toml"
    config.write_text(settings)
    config.chmod(0o600)
    env = {"GPURUN_HOME": str(tmp_path), "GPURUN_CONFIG": str(config), "PATH": "/usr/bin:/bin"}
    renting = [
        subprocess.Popen(
            [sys.executable, "-c", RENTS, str(tmp_path), run_id, "vast"],
            cwd=Path(__file__).parents[1],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for run_id in run_ids
    ]
    for each in renting:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in renting:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    said = [each.communicate()[0].strip() for each in renting]
    assert said.count("reserved") == reserved, said
    assert sum(name in text for text in said) == AT_ONCE - reserved, said
    held = sum((journal.ledger.committed_usd(run_id) for run_id in run_ids), Decimal(0))
    assert held == reserved
    until = clock.now() + timedelta(minutes=1)
    known = Settings(max_usd_per_day=Decimal(100))
    [room] = journal.ledger.rooms(period_caps(known, "vast", until))
    assert room.counted_usd == reserved
    journal.close()
