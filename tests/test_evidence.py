"""Trainings that really fail or hang: what is kept of them, and what is made of it."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpurun.engine.watch.evidence import PART_BYTES, gather
from gpurun.shell.local import LocalShell
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
PY_SPY = """\
Process 13026: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 13026 (idle): "MainThread"
    step (app/train.py:31)
    <module> (app/train.py:40)
Thread 13028 (idle): "RendezvousKeepAliveTimer_0"
    Condition.wait (threading.py:331)
    Thread.run (threading.py:982)
"""


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


def test_a_loader_whose_worker_sleeps_is_named(train: Callable[..., Training]) -> None:
    program = (
        BEGINS
        + """\
import torch.utils.data as data
class Slow(data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        time.sleep(600 if index else 0)
        return index
for batch in data.DataLoader(Slow(), num_workers=1):
    say(step=1)
"""
    )
    judged = train().python(program).until_step().judged()
    assert judged.verdict.cause == "hang-loader", judged.message
    assert "train.py:" in judged.verdict.says


def test_a_loss_that_is_not_finite_any_more_ends_it(train: Callable[..., Training]) -> None:
    program = (
        BEGINS
        + """\
weight, step = 3.0, 0
while True:
    step += 1
    loss = (weight * 2.0 - 1.0) ** 2 if abs(weight) < 1e150 else weight * weight - weight * weight
    weight -= 1.5 * 4.0 * (weight * 2.0 - 1.0)
    say(step=step, loss=loss)
    time.sleep(0.002)
"""
    )
    judged = train().python(program).judged()
    assert judged.verdict.cause == "nan", judged.message
    assert "no step with a finite loss" in judged.message
    assert '"loss": NaN' in (judged.evidence.parent / "out/metrics.jsonl").read_text()


def test_a_worker_killed_by_sigbus_points_to_shared_memory(train: Callable[..., Training]) -> None:
    """A page behind the end of a mapped file, as when /dev/shm is full."""
    program = (
        BEGINS
        + """\
import mmap, tempfile
import torch.utils.data as data
class Full(data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        with tempfile.TemporaryFile() as file:
            file.truncate(1 << 20)
            pages = mmap.mmap(file.fileno(), 1 << 20)
            file.truncate(0)
            return pages[0]
for batch in data.DataLoader(Full(), num_workers=1):
    pass
"""
    )
    judged = train(watch={}).python(program).judged()
    assert judged.failed.how == "exit"
    assert judged.verdict.cause == "shared-memory", judged.message


def test_a_crash_in_a_rank_is_told_by_its_own_error(train: Callable[..., Training]) -> None:
    program = RANKS + "train_step(1)\nif rank == 1:\n    {}['puzzle_emb']\ntrain_step(2)\n"
    judged = train(watch={}).python(program, *TORCHRUN).judged(120)
    assert judged.verdict.cause == "exception", judged.message
    assert "KeyError: 'puzzle_emb'" in judged.message


def test_a_training_that_is_killed_from_outside_is_gone_without_an_exit_code(
    train: Callable[..., Training],
) -> None:
    training = train().launch("while :; do sleep 0.05; done")
    assert training.watcher.step() is None
    training.close()
    judged = training.judged()
    assert (judged.failed.how, judged.verdict.cause) == ("vanished", "killed")


def test_code_that_knows_no_faulthandler_is_not_ended_by_asking(
    train: Callable[..., Training],
) -> None:
    """Its stack comes from py-spy; what a py-spy printed once stands in for it."""
    training = train()
    training.shim("py-spy", f"cat <<'END'\n{PY_SPY}\nEND")
    program = 'import os, time; open("pid", "w").write(str(os.getpid())); time.sleep(600)'
    training.launch(f"{sys.executable} -c '{program}'")
    judged = training.judged()
    assert "step (app/train.py:31)" in judged.verdict.says
    pid = (training.root / "pid").read_text()
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "S"


def test_without_any_stack_the_kernel_says_where_it_waits(train: Callable[..., Training]) -> None:
    judged = train().launch("sleep 600").judged()
    assert judged.verdict.cause == "hang"
    assert "hrtimer_nanosleep" in (judged.evidence / "stacks.txt").read_text()


def test_the_evidence_holds_names_of_variables_and_no_key(train: Callable[..., Training]) -> None:
    training = train()
    program = BEGINS + "time.sleep(600)"
    (training.root / "train.py").write_text(program)
    command = f"API_TOKEN='s3cret\nvalue' {sys.executable} train.py --api-key=s3cret x"
    judged = training.launch(command).judged()
    kept = {path.name: path.read_text() for path in judged.evidence.iterdir()}
    assert "API_TOKEN" in kept["stacks.txt"]
    assert "--api-key=***" in kept["stacks.txt"] and "--api-key=***" in kept["processes.txt"]
    assert not any("s3cret" in text for text in kept.values())


def test_commands_that_hang_on_the_box_hold_up_nothing(train: Callable[..., Training]) -> None:
    training = train()
    for name in ("nvidia-smi", "dmesg"):
        training.shim(name, "exec sleep 600")
    training.launch("exit 3")
    failed = training.until_end()
    began_s = training.clock.boot_s()
    folder = gather(
        training.shell,
        training.root / "evidence",
        failed,
        clock=training.clock,
        within_s=3,
        log=training.log,
    )
    assert training.clock.boot_s() - began_s < 6
    assert "(exit 124)" in (folder / "nvidia-smi.txt").read_text()
    assert "no time left" in (folder / "machine.txt").read_text()


def test_evidence_without_end_is_cut(train: Callable[..., Training]) -> None:
    training = train()
    training.shim("nvidia-smi", "[ $# -gt 1 ] || yes 'GPU 0' | head -c 50000000")
    judged = training.launch("exit 3").judged()
    assert (judged.evidence / "nvidia-smi.txt").stat().st_size < 2 * PART_BYTES


def test_the_flight_recorder_is_asked_and_its_dump_fetched(train: Callable[..., Training]) -> None:
    """As PyTorch's does it: a pipe for each rank, and a dump once somebody writes to it."""
    program = (
        BEGINS
        + """\
def record():
    with open(os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + "0.pipe") as pipe:
        assert pipe.read(1)
    with open(os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] + "0", "wb") as dump:
        dump.write(b"\\x80\\x04 recorded")
os.mkfifo("pipe0.pipe")
threading.Thread(target=record, daemon=True).start()
say(step=1)
time.sleep(600)
"""
    )
    training = train()
    variables = {"PIPE": "pipe", "TEMP": "trace_rank_"}
    names = " ".join(
        f"TORCH_NCCL_DEBUG_INFO_{key}_FILE={training.root / value}"
        for key, value in variables.items()
    )
    (training.root / "train.py").write_text(program)
    judged = training.launch(f"RANK=0 {names} {sys.executable} train.py").judged()
    assert (judged.evidence / "dumps/trace_rank_0").read_bytes() == b"\x80\x04 recorded"


def test_a_box_that_is_gone_leaves_the_evidence_that_is_here(
    train: Callable[..., Training],
) -> None:
    training = train()
    training.launch("echo it was here; exit 3")
    failed = training.until_end()
    gone = LocalShell(training.root, alive=lambda: False)
    folder = gather(
        gone,
        training.root / "evidence",
        failed,
        clock=training.clock,
        within_s=20,
        log=training.log,
    )
    assert "it was here" in (folder / "log-tail.txt").read_text()
    assert json.loads((folder / "end.json").read_text())["exit_code"] == 3
