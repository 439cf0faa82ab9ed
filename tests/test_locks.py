"""The lock whose holder is the driver."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpurun.clock import Deadline
from gpurun.locks import Taken, hold, holder

HOLD = "import sys, time; from pathlib import Path; from gpurun.locks import hold\n"
HOLD += "with hold(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"


@pytest.fixture
def other(tmp_path: Path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_lock_that_was_never_taken_has_no_holder(tmp_path: Path) -> None:
    assert holder(tmp_path / "lock") is None


def test_the_holder_is_named_by_its_pid(other, tmp_path: Path) -> None:
    assert holder(tmp_path / "lock") == other.pid


def test_a_held_lock_is_not_given_twice(other, tmp_path: Path) -> None:
    with pytest.raises(Taken), hold(tmp_path / "lock"):
        pass


def test_a_killed_process_frees_its_lock(other, tmp_path: Path) -> None:
    other.kill()
    other.wait()
    with hold(tmp_path / "lock"):
        assert holder(tmp_path / "lock") == os.getpid()
    assert holder(tmp_path / "lock") is None


def test_a_stopped_process_keeps_its_lock(other, tmp_path: Path) -> None:
    os.kill(other.pid, signal.SIGSTOP)
    deadline = Deadline(5)
    while "T" not in Path(f"/proc/{other.pid}/stat").read_text().split(")")[1].split()[0]:
        assert not deadline.passed()
    assert holder(tmp_path / "lock") == other.pid
