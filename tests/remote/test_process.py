"""A run's process ends at once and with its status, whatever PyTorch's threads still wait for."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from remote.ranks import joined
from tests.remote.runs import FORKS

TAKEN_DOWN = "the interpreter is taken down"
PROGRAM = f"""
import sys
from remote.process import end_with

class Last:
    def __del__(self, say=sys.__stderr__.write):
        say({TAKEN_DOWN!r})

last = Last()

def main():
    print("said", end="")
    %s

if __name__ == "__main__":
    end_with(main)
"""


@pytest.mark.parametrize(
    ("end", "status", "says"),
    [("return 3", 3, ""), ("return 0", 0, ""), ("raise ValueError('why')", 1, "ValueError: why")],
)
def test_a_process_ends_with_its_status_and_is_not_taken_down(
    end: str, status: int, says: str
) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM % end], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (status, "said")
    assert says in done.stderr
    assert TAKEN_DOWN not in done.stderr


def test_no_rank_waits_for_the_threads_of_a_group_that_it_leaves() -> None:
    """They would be joined where the group is deleted, and PyTorch 2.5 waits there for ever."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    ranks = []
    for rank in ("0", "1"):
        ranks.append(FORKS.Process(target=_leave, args=(place | {"RANK": rank},)))
        ranks[-1].start()
    try:
        for process in ranks:
            process.join(120)
            assert process.exitcode == 0
    finally:
        for process in ranks:
            process.kill()


def _leave(place: dict[str, str]) -> None:
    os.environ.update(place | {"LOCAL_RANK": place["RANK"]})
    with joined("cpu") as ranks:
        assert ranks.gather(ranks.rank) == [0, 1]
        del ranks
        before = _threads()
    assert _threads() >= before


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))
