"""SIGTERM from a process's first moment on, and on every rank."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.remote.runs import ONE_THREAD, quiet, ranked, words

__all__ = ["quiet"]

LONG = ("epochs=100000", "eval_interval=100000", "evaluators=[]")
NOTHING = "SIGTERM before the first step: nothing was trained, nothing is saved"
# Stops where torch is first imported, and says so; what it goes on to is the real thing.
TORCH_IS_SLOW = """
import sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print("importing torch", flush=True)
            time.sleep(600)
sys.meta_path.insert(0, Slow())
from remote.pretrain import main
sys.exit(main(sys.argv[1:]))
"""


def started(command: list[str], sign: str) -> subprocess.Popen[str]:
    """A process that has said so."""
    process = subprocess.Popen(
        command, env=ONE_THREAD, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith(sign):
            return process
    raise AssertionError("".join(said))


def test_before_torch_is_there_it_ends_with_0_and_says_that_nothing_was_trained(
    small_set: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-c", TORCH_IS_SLOW, *words(small_set, run, *LONG)]
    process = started(command, "importing torch")
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=120)
    assert (process.returncode, said) == (0, NOTHING + "\n")
    assert not run.exists()


def test_a_check_that_is_ended_has_not_passed(small_set: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", TORCH_IS_SLOW, "--check", *words(small_set, tmp_path)]
    process = started(command, "importing torch")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGTERM


def test_a_rank_that_waits_for_another_ends_too(small_set: Path, tmp_path: Path) -> None:
    """The second process never comes: the first waits for it where no handler of Python's runs."""
    with ranked(1, words(small_set, tmp_path / "run", *LONG), of=2) as (rank,):
        listens_on(rank.port)
        rank.signal(signal.SIGTERM)
        status, said = rank.end()
    assert (status, said) == (0, NOTHING + "\n")


def listens_on(port: int) -> None:
    """Once this returns."""
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(0.05)


@pytest.mark.parametrize("sign", ["data: ", "step 1/"])
def test_all_ranks_end_with_0_whenever_it_comes(sign: str, small_set: Path, tmp_path: Path) -> None:
    """While the run is described, and once a step is made: then it is saved."""
    run = tmp_path / "run"
    with ranked(2, words(small_set, run, *LONG)) as both:
        both[0].until(sign)
        for rank in both:
            rank.signal(signal.SIGTERM)
        ends = [rank.end() for rank in both]
    assert [status for status, _ in ends] == [0, 0], ends
    saved = list(run.glob("step_*"))
    assert saved if sign == "step 1/" else saved or all(NOTHING in said for _, said in ends)
