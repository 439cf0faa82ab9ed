"""When a run ends or hangs: what happened, to what, and the next command.

The watchdog shows where every thread is, and ends a process that makes no step.
"""

import contextlib
import faulthandler
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator

import torch

from remote.machine import Machine, no_kernel_image, small_shm

log = logging.getLogger(__name__)
HUNG = 86  # exit status of a process that its watchdog ended
SPARE = 0.95  # share of a GPU's memory that a batch can have; the rest is fragments
NO_COMPILER = re.compile(r"find C compiler|InvalidCxxCompiler|No working C\+\+ compiler", re.I)
NO_NVCC = re.compile(r"CUDA_HOME environment variable is not set|nvcc.*(not found|No such file)")
SHARED_MEMORY = re.compile(r"bus error|/dev/shm|shared memory|shm_open", re.I)
NO_MEMORY = re.compile(r"out of memory|can't allocate memory|Cannot allocate memory", re.I)


def explain(error: BaseException, machine: Machine) -> str | None:
    """A known error in words, with its cure; None for any other."""
    text = str(error)
    if "no kernel image is available" in text:
        return no_kernel_image(machine)
    if SHARED_MEMORY.search(text):
        return f"{_first_line(error)}: {small_shm(machine)}"
    if NO_COMPILER.search(text):
        return (
            "torch.compile found no compiler: apt-get install -y g++, or set DISABLE_COMPILE=1"
            " (slower, the same results)"
        )
    if NO_NVCC.search(text):
        return (
            f"{_first_line(error)}: building a CUDA extension needs nvcc, and"
            f" {f'{machine.nvcc} is not used' if machine.nvcc else 'it is not on the PATH'}."
            " Use an image whose tag ends in -devel, or export"
            " CUDA_HOME=/usr/local/cuda PATH=$PATH:/usr/local/cuda/bin; nothing here requires it"
        )
    if isinstance(error, torch.OutOfMemoryError) or NO_MEMORY.search(text):
        return f"{_first_line(error)}; lower global_batch_size, or use more GPUs"
    return None


def out_of_memory(
    machine: Machine, *, rows: int, ranks: int, fixed_bytes: int, row_bytes: int | None
) -> str:
    """For a batch of `rows` rows on each rank; `row_bytes` was measured on fewer, or is unknown."""
    said = (
        f"out of memory: {rows} rows on {machine.gpu or 'this machine'} with"
        f" {machine.memory_gib:.1f} GiB, of which {fixed_bytes / 2**30:.1f} GiB are taken before"
        " it (weights, moments, puzzle table, carry)"
    )
    if not row_bytes:
        return f"{said}. Lower global_batch_size, now {rows * ranks}"
    fit = rows_that_fit(machine.memory_gib * 2**30, fixed_bytes, row_bytes, fewer_than=rows)
    if fit == 0:
        return f"{said}, and a row needs {row_bytes / 2**30:.2f} GiB: none fits. Take a larger GPU"
    return (
        f"{said}, and a row needs {row_bytes / 2**20:.0f} MiB: {fit} rows would fit. Use"
        f" global_batch_size={fit * ranks}"
    )


def rows_that_fit(total_bytes: float, fixed_bytes: int, row_bytes: int, *, fewer_than: int) -> int:
    return min(max(int((SPARE * total_bytes - fixed_bytes) / row_bytes), 0), fewer_than - 1)


class Watchdog:
    """Ends the process when nothing has beaten for so long: a hung box costs money for nothing."""

    def __init__(self, limit_s: float, end: Callable[[int], None] = os._exit) -> None:
        self._limit_s, self._end = limit_s, end
        self._last_s, self._doing = time.monotonic(), "starting"
        self._done = threading.Event()

    def beat(self, doing: str) -> None:
        self._last_s, self._doing = time.monotonic(), doing

    @contextlib.contextmanager
    def watching(self) -> Iterator["Watchdog"]:
        """With a limit of 0 nothing is watched."""
        self.beat("starting")
        thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        if self._limit_s:
            thread.start()
        try:
            yield self
        finally:
            self._done.set()

    def _watch(self) -> None:
        while not self._done.wait(min(1.0, self._limit_s / 4)):
            silent_s = time.monotonic() - self._last_s
            if silent_s < self._limit_s:
                continue
            print(
                f"nothing has happened for {silent_s:.0f} s since: {self._doing}. Every thread is"
                " shown below; the process ends, load_checkpoint=latest lets a training go on from"
                " the last checkpoint. If steps do take that long, raise hang_minutes",
                file=sys.__stderr__,
                flush=True,
            )
            faulthandler.dump_traceback(file=sys.__stderr__)
            self._end(HUNG)
            return


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
