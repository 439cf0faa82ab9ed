"""Whole runs of a very small model, in this process or in others."""

import contextlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import remote.launch  # noqa: F401, so that the forks have it
from remote.export import assembled
from remote.pretrain import main as pretrain

MODEL = ["arch=trm", "arch.hidden_size=16", "arch.num_heads=2", "arch.L_layers=1"]
MODEL += ["arch.H_cycles=1", "arch.L_cycles=1", "arch.halt_max_steps=2", "arch.puzzle_emb_len=1"]
RUN = ["global_batch_size=4", "epochs=2", "eval_interval=1", "lr=1e-2", "lr_warmup_steps=2"]
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
# Processes that have torch loaded already: a rank starts in milliseconds, not in seconds.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.remote.runs"])


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    before, threads = signal.getsignal(signal.SIGTERM), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    signal.signal(signal.SIGTERM, before)
    torch.set_num_threads(threads)


def words(data: Path, run: Path, *more: str) -> list[str]:
    return [*MODEL, *RUN, f"data_paths=[{data}]", f"checkpoint_path={run}", *more]


def train(data: Path, run: Path, *more: str) -> None:
    assert pretrain(words(data, run, *more)) == 0


class Rank:
    """A process that trains; what it says can be read as it comes."""

    def __init__(self, words: list[str], place: dict[str, str], first: Callable[[], None]) -> None:
        self.port = int(place["MASTER_PORT"])
        self._out = Path(tempfile.mkdtemp(prefix="rank")) / "out"
        os.mkfifo(self._out)
        self.process = FORKS.Process(
            target=_train_as_rank, args=(words, place, str(self._out), first)
        )
        self.process.start()
        self.said = self._out.open()

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def limit_files(self, count: int) -> None:
        """Bytes; a write beyond fails."""
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (count, count))

    def until(self, start: str, times: int = 1) -> None:
        """Reads on until so many lines have begun like this."""
        lines = []
        for line in self.said:
            lines.append(line)
            times -= line.startswith(start)
            if times == 0:
                return
        raise AssertionError(f"it never said {start!r}: {''.join(lines)}")

    def end(self) -> tuple[int | None, str]:
        """Its exit status and what else it had to say, once it is over."""
        rest = self.said.read()
        self.process.join(60)
        return self.process.exitcode, rest

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self.said.close()
        shutil.rmtree(self._out.parent)


def _train_as_rank(
    words: list[str], place: dict[str, str], out: str, first: Callable[[], None]
) -> None:
    os.environ.update(place)
    first()
    handle = os.open(out, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(handle, descriptor)
    os.close(handle)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    torch.set_num_threads(1)
    sys.exit(pretrain(words))


def _nothing() -> None:
    pass


@contextlib.contextmanager
def ranked(
    count: int, words: list[str], *, of: int | None = None, first: Callable[[], None] = _nothing
) -> Iterator[list[Rank]]:
    """The first so many of `of` processes, all without it; ended when this is left.

    Each calls `first` before anything else.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(of or count)}
    place |= {"WANDB_MODE": "disabled"}
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in map(str, range(count)):
            ranks.append(Rank(words, place | {"RANK": rank, "LOCAL_RANK": rank}, first))
            stack.callback(ranks[-1].close)
        yield ranks


def on_ranks(count: int, words: list[str], *, first: Callable[[], None] = _nothing) -> None:
    with ranked(count, words, first=first) as ranks:
        ends = [rank.end() for rank in ranks]
        assert [status for status, _ in ends] == [0] * count, "\n".join(said for _, said in ends)


def metrics(run: Path, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in metrics(run, "step")]


def shared(run: Path, step: int) -> dict[str, Any]:
    return torch.load(run / f"step_{step}" / "state.pt", weights_only=True)


def of_rank(run: Path, step: int, rank: int = 0) -> dict[str, Any]:
    return torch.load(run / f"step_{step}" / f"rank_{rank}.pt", weights_only=True)


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    """All of them, by upstream's names, not averaged."""
    return assembled(run / f"step_{step}", averaged=False)


def everything(run: Path, step: int) -> list[Any]:
    """What two runs that are the same must agree in, to the bit."""
    own = shared(run, step)
    own["config"] = None
    return [own, of_rank(run, step)]


def assert_same(ours: object, theirs: object, name: str = "") -> None:
    if isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs), name
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_same(ours[key], theirs[key], f"{name}.{key}")
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, f"{name}[{index}]")
    else:
        assert ours == theirs, name
