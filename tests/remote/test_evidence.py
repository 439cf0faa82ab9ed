"""What is left behind by a run that went wrong."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from remote.evidence import HUNG, Watchdog, explain, out_of_memory, rows_that_fit
from remote.machine import Machine
from remote.pretrain import main as pretrain
from tests.remote.runs import (
    assert_same,
    everything,
    metrics,
    on_ranks,
    quiet,
    ranked,
    shared,
    train,
    words,
)

__all__ = ["quiet"]

H100 = Machine(8, 0.0625, None, (9, 0), "NVIDIA H100 80GB HBM3", 79.1, ("sm_70", "sm_80"))
NO_EVALUATION = ("evaluators=[]", "min_eval_interval=99")


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("CUDA error: no kernel image is available for execution on the device", "pip install"),
        ("DataLoader worker (pid 7) is killed by signal: Bus error.", "--shm-size=8g"),
        ("Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)", "--shm-size"),
        ("CUDA_HOME environment variable is not set. Please set it", "image whose tag ends in -d"),
        ("[Errno 2] No such file or directory: nvcc not found", "it is not on the PATH"),
        ("Failed to find C compiler. Please specify via CC", "apt-get install -y g++"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "lower global_batch_size"),
        ("[enforce fail] DefaultCPUAllocator: can't allocate memory", "lower global_batch_size"),
    ],
)
def test_a_known_error_names_its_cure(text: str, cure: str) -> None:
    assert cure in (explain(RuntimeError(text), H100) or "")


def test_an_unknown_error_is_left_to_its_traceback() -> None:
    assert explain(RuntimeError("something else"), H100) is None


def test_out_of_memory_says_batch_memory_and_what_would_fit() -> None:
    gib = 2**30
    said = out_of_memory(H100, rows=512, ranks=4, fixed_bytes=5 * gib, row_bytes=gib // 4)
    assert "512 rows on NVIDIA H100 80GB HBM3 with 79.1 GiB, of which 5.0 GiB" in said
    assert "280 rows would fit. Use global_batch_size=1120" in said
    assert "none fits" in out_of_memory(
        H100, rows=2, ranks=1, fixed_bytes=70 * gib, row_bytes=9 * gib
    )
    assert "now 2048" in out_of_memory(H100, rows=512, ranks=4, fixed_bytes=gib, row_bytes=None)
    # What has just failed does not fit, whatever was measured on fewer rows.
    assert rows_that_fit(100, 0, 1, fewer_than=64) == 63


def test_a_loss_that_is_not_finite_stops_with_the_last_good_state(
    small_set: Path, tmp_path: Path, capsys
) -> None:
    """Found at a report, steps later; the state is that after the last good step, to the bit."""
    settings = ("lr=1e30", "ema=True", "arch.halt_max_steps=4", *NO_EVALUATION)
    broken, good = tmp_path / "broken", tmp_path / "good"
    more = words(small_set, broken, *settings, "log_interval=4", "max_steps=4")
    assert pretrain(more) == 1
    said = capsys.readouterr().err
    bad = metrics(broken, "not finite")[0]["step"]
    assert 1 < bad < 4
    assert f"step {bad} is not finite" in said
    assert f"{broken}/step_{bad - 1} is the state before it" in said
    train(small_set, good, *settings, f"max_steps={bad - 1}")
    saved = everything(broken, bad - 1)
    for state in saved:
        state["sums"] = None
    expected = everything(good, bad - 1)
    for state in expected:
        state["sums"] = None
    assert_same(saved, expected)
    assert all(tensor.isfinite().all() for tensor in shared(broken, bad - 1)["model"].values())


def test_a_fault_and_a_signal_show_where_every_thread_is() -> None:
    """A bus error as a full /dev/shm makes it: a mapped file that has become too short."""
    program = """
import mmap, os, signal, sys, tempfile
from remote import signals
signals.show_stacks_when_asked()
os.kill(os.getpid(), signal.SIGUSR1)
with tempfile.TemporaryFile() as file:
    file.truncate(4096)
    mapped = mmap.mmap(file.fileno(), 4096)
    file.truncate(0)
    mapped[0]
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == -signal.SIGBUS
    asked, _, fault = result.stderr.partition("Fatal Python error: Bus error")
    assert "most recent call first" in asked
    assert "most recent call first" in fault


def test_the_watchdog_ends_only_what_is_silent(capfd) -> None:
    ended: list[int] = []
    over = threading.Event()

    def end(status: int) -> None:
        ended.append(status)
        over.set()

    dog = Watchdog(0.2, end)
    with dog.watching():
        for step in range(20):
            dog.beat(f"step {step}")
            assert not over.wait(0.05), "it was not silent"
        assert over.wait(20)
    assert ended == [HUNG]
    said = capfd.readouterr().err
    assert "since: step 19. Every thread is shown below" in said
    assert "test_the_watchdog_ends_only_what_is_silent" in said


def test_a_process_whose_peer_hangs_says_where_it_waits_and_ends(
    small_set: Path, tmp_path: Path
) -> None:
    run = words(small_set, tmp_path / "run", "epochs=9999", "hang_minutes=0.05", *NO_EVALUATION)
    with ranked(2, run) as (first, second):
        first.until("step 2/")
        second.signal(signal.SIGSTOP)
        status, said = first.end()
    assert status == HUNG
    assert "nothing has happened for" in said
    assert "remote/ranks.py" in said


def test_a_torch_error_of_memory_is_a_runtime_error_here_too() -> None:
    assert explain(torch.OutOfMemoryError("HIP out of memory"), H100) is not None


def test_the_watchdog_is_quiet_on_all_ranks_while_they_evaluate(
    small_set: Path, tmp_path: Path
) -> None:
    """The evaluation takes longer than a step may, on each rank."""
    limit_s = 3.0
    run = words(small_set, tmp_path / "run", "max_steps=1", f"hang_minutes={limit_s / 60}")
    many = ",".join([str(small_set)] * 4)  # batches, each much shorter than the limit
    slow = ("global_batch_size=2", "arch.halt_max_steps=25", f"data_paths_test=[{many}]")
    on_ranks(2, [*run, *slow])
    (evaluated,) = metrics(tmp_path / "run", "eval")
    assert evaluated["eval_s"] > limit_s
    (said, *_) = metrics(tmp_path / "run", "evaluating")
    assert (said["step"], said["batches_done"], said["batches"]) == (1, 0, 32)
