"""Whole runs of a very small model, in this process or in others."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from remote.export import assembled
from remote.pretrain import main as pretrain

MODEL = ["arch=trm", "arch.hidden_size=16", "arch.num_heads=2", "arch.L_layers=1"]
MODEL += ["arch.H_cycles=1", "arch.L_cycles=1", "arch.halt_max_steps=2", "arch.puzzle_emb_len=1"]
RUN = ["global_batch_size=4", "epochs=2", "eval_interval=1", "lr=1e-2", "lr_warmup_steps=2"]
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
RANKS = """
import json, sys
from remote.pretrain import main
sys.exit(max(main(words) for words in json.loads(sys.argv[1])))
"""


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


def on_ranks(count: int, *runs: list[str]) -> None:
    """The runs, one after the other, each on `count` processes that find each other."""
    with ranked(count, *runs) as processes:
        said = [process.communicate(timeout=120)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * count, "\n".join(said)


@contextlib.contextmanager
def ranked(count: int, *runs: list[str]) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes of `on_ranks`, ended when this is left."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-u", "-c", RANKS, json.dumps(runs)],
            env=ONE_THREAD | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


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
