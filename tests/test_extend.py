"""`extend`: what it shows, what it moves, and all that it refuses."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.homes import WAITS, Home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.close()


def test_a_run_is_extended_within_its_money_and_the_caps_on_every_guard(home: Home) -> None:
    run = home.up(home.recipe(train=WAITS, run_minutes=20))
    home.until_phase(run, "train")
    before = home.document(run)["timer"]
    for by in ("-5m", "1e9h"):
        refused = home.run("extend", run, "--yes", "--", by)
        assert refused.returncode == 2, by
        assert "is not a duration between 0 and 90 days" in refused.stderr
    assert "--yes" in home.run("extend", run, "10m").stderr
    refused = home.run("extend", run, "9h", "--yes")
    assert refused.returncode == 3
    most = re.search(rf"budget.max_usd \$10.00: .*`gpurun extend {run} (1\d\dm)`", refused.stderr)
    assert most is not None, refused.stderr  # a hundred and some minutes
    home.config.write_text("max_usd_per_day = 3\n")
    refused = home.run("extend", run, "60m", "--yes")
    assert refused.returncode == 3
    assert "left of max_usd_per_day $3.00: nothing was changed" in refused.stderr
    assert "Or raise max_usd_per_day in the settings." in refused.stderr
    assert home.document(run)["timer"]["seq"] == before["seq"]
    done = home.run("extend", run, "10m", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    # 30 minutes, 12 s of grace and the fuse's 2 minutes at $3.60 an hour, and the setup before.
    assert 1.93 < float(said["ceiling_usd"]) <= 3
    assert f"may cost up to ${said['ceiling_usd']} of $10.00" in said["said"]
    timer = said["run"]["timer"]
    assert timer["seq"] > before["seq"]
    assert {guard["seq"] for guard in home.document(run)["guards"]} == {timer["seq"]}
    home.config.write_text("")
    assert home.run("extend", run, most[1], "--yes").returncode == 3  # ten of them are taken
    less = f"{int(most[1][:-1]) - 10}m"
    assert home.run("extend", run, less, "--yes").returncode == 0
    assert home.run("kill", run, "--yes", "--no-collect").returncode == 0
    late = home.run("extend", run, "10m", "--yes")
    assert late.returncode == 2
    assert "it is killed" in late.stderr
