"""Trainings that really fail or hang: what is kept of them, and what is made of it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainings import Training, recipe

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
BEGINS = """\
import faulthandler, json, os, signal, sys, threading, time
faulthandler.register(signal.SIGUSR1)
os.makedirs("out", exist_ok=True)
def say(**line):
    with open("out/metrics.jsonl", "a") as file:
        print(json.dumps(line), file=file, flush=True)
"""
RANKS = (
    BEGINS
    + """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
def train_step(step):
    dist.all_reduce(torch.ones(4))
    if rank == 0:
        say(step=step, total_steps=9, loss=1.0)
"""
)


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    made: list[Training] = []

    def make(**changes: Any) -> Training:
        made.append(Training(tmp_path / "box", recipe(**changes)))
        return made[-1]

    yield make
    for training in made:
        training.close()


def test_a_rank_that_never_comes_to_a_collective_is_named(train: Callable[..., Training]) -> None:
    program = RANKS + (
        "def only_on_rank_1():\n    time.sleep(600)\n"
        "train_step(1)\n"
        "if rank == 1:\n    only_on_rank_1()\n"
        "train_step(2)\n"
    )
    judged = train().python(program, *TORCHRUN).until_step().judged()
    assert judged.verdict.cause == "hang-missing-rank", judged.message
    assert "rank 1" in judged.verdict.says and "only_on_rank_1 (" in judged.verdict.says
    stacks = (judged.evidence / "stacks.txt").read_text()
    assert stacks.count("-- stack by faulthandler") >= 2
    assert "all_reduce" in stacks


def test_ranks_that_wait_for_each_other_are_seen_in_a_collective(
    train: Callable[..., Training],
) -> None:
    program = RANKS + (
        "train_step(1)\n"
        "if rank == 0:\n    dist.all_reduce(torch.ones(4))\n"
        "dist.recv(torch.ones(4), src=1 - rank)\n"
    )
    judged = train().python(program, *TORCHRUN).until_step().judged()
    assert judged.verdict.cause == "hang-collective", judged.message
