"""`doctor RUN`: the list that people went through by hand before a launch, on a live box."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.homes import WAITS, Home

# Dataset there, GPUs seen, torch works, PATH, W&B, timer, checkpoints can be written.
SEVEN = ["dataset", "GPUs", "torch", "PATH", "W&B", "timer", "checkpoint folder"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    made = Home(tmp_path_factory.mktemp("doctor"))
    made.env["PIP_INDEX_URL"] = "http://127.0.0.1:9/simple"  # closed: no registry is asked
    yield made
    made.close()


@pytest.fixture(scope="module")
def run(home: Home) -> str:
    """A run that trains."""
    started = home.up(home.recipe(train=WAITS))
    home.until_phase(started, "train")
    home.until(lambda: next(home.places.boxes.glob("gpurun-*/root/out/result.txt")).exists())
    return started


@pytest.fixture
def root(home: Home, run: str) -> Path:
    return next(home.places.boxes.glob("gpurun-*")) / "root"


def findings(home: Home, run: str) -> dict[str, Any]:
    done = home.run("doctor", run, "--json")
    document = json.loads(done.stdout)
    assert done.returncode == (0 if document["ok"] else 2)
    return {
        finding["what"].removeprefix("box: "): finding
        for finding in document["findings"]
        if finding["what"].startswith("box: ")
    }


def test_a_good_box_is_ok_in_every_line(home: Home, run: str) -> None:
    found = findings(home, run)
    assert [name for name, finding in found.items() if not finding["ok"]] == []
    assert found["dataset"]["says"] == "data/*/dataset.json: 2 files, 2 expected"
    assert "run timer" in found["timer"]["says"]
    assert found["checkpoint folder"]["says"] == "out is writable"
    assert found["answers"]["says"].startswith("no GPU, ")
    assert {"disk", "Python", "user", "clock", "/dev/shm"} <= found.keys()


def test_the_seven_checks_before_a_launch_are_among_them(home: Home, run: str) -> None:
    assert set(SEVEN) <= findings(home, run).keys()


def test_it_is_printed_as_a_table(home: Home, run: str) -> None:
    done = home.run("doctor", run)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert all(line.startswith(("ok    ", "WANT  ")) for line in lines)
    assert "box: timer" in [line[6:].split("  ")[0] for line in lines]


def test_what_is_not_right_is_wanted(home: Home, run: str, root: Path) -> None:
    gone = root / "data" / "train" / "dataset.json"
    gone.unlink()
    (root / "out").rename(root / "kept")
    (root / "out").write_text("a file is in the way")
    try:
        found = findings(home, run)
    finally:
        gone.touch()
        (root / "out").unlink()
        (root / "kept").rename(root / "out")
    assert found["dataset"] == {
        "what": "box: dataset",
        "says": "data/*/dataset.json: 1 files, 2 expected",
        "ok": False,
    }
    assert not found["checkpoint folder"]["ok"]
    assert {name for name, one in found.items() if not one["ok"]} == {
        "dataset",
        "checkpoint folder",
    }


def test_what_a_box_says_never_reaches_the_terminal_raw(home: Home, run: str, root: Path) -> None:
    (root / ".gpurun" / "optimiser").write_bytes(b"torch \x1b]0;owned\x07 \xff " + b"x" * 9000)
    try:
        done = home.run("doctor", run)
    finally:
        (root / ".gpurun" / "optimiser").unlink()
    assert "\x1b" not in done.stdout and "\x07" not in done.stdout
    [line] = [line for line in done.stdout.splitlines() if "optimiser" in line]
    assert len(line) < 400


def test_a_run_without_a_box_says_so(home: Home) -> None:
    done = home.run("doctor", "nope")
    assert done.returncode == 2
