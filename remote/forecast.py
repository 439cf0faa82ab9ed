"""What a run will take in time and memory, reckoned before its first step."""

import dataclasses
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from remote.config import PretrainConfig
from remote.dataset.split import Split
from remote.models.build import build_model, forward_dtype
from remote.ranks import Ranks
from remote.speed import evaluation_flops, forward_flops, peak_of, step_flops
from remote.training import ROWS_IN_CACHE, batch_to_device

ASSUMED_MFU = 0.4
PROBE_ROWS = 4
PROBE_S = 1.0  # a first try that takes longer is not repeated
MOST_EVALUATION = 0.2  # of the run's time
WORTH_A_WARNING_S = 60
ACTIVATION_BYTES = 40  # per token, layer pass and unit of width, in eager bfloat16
FUSED_ACTIVATION_BYTES = 20  # what even the best compiler keeps
CPU_ACTIVATION_BYTES = 48  # likewise there, of the rows that are in work at a time
CPU_CARRY_BYTES = 16  # of every row: what it carries from step to step, old and new
CPU_OWN_BYTES = 35 * 2**20  # what torch takes beside for a first step
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast all ranks together are expected to be."""

    flops_per_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Times:
    step_s: float
    evaluation_s: float
    evaluations: int
    steps: int

    @property
    def evaluations_s(self) -> float:
        return self.evaluations * self.evaluation_s

    @property
    def run_s(self) -> float:
        return self.steps * self.step_s + self.evaluations_s

    @property
    def share(self) -> float:
        """Of the run's time that goes into evaluations."""
        return self.evaluations_s / self.run_s


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one process, in bytes."""

    fixed: int  # weights, gradients, two moments, the average; the puzzle table
    per_row: int  # activations that carry gradient, of one row of those in work
    per_row_at_least: int
    limit: int | None
    per_row_kept: int = 0  # of every row of a batch
    at_once: int | None = None  # rows in work; None: all
    process: int = 0  # what this process has before it begins; on a CPU

    def of(self, rows: int) -> int:
        return self.process + self.fixed + self._rows(rows, self.per_row)

    def at_least(self, rows: int) -> int:
        return self.fixed + self._rows(rows, self.per_row_at_least)

    @property
    def rows_that_fit(self) -> int:
        spare = max((self.limit or 0) - self.fixed, 0)
        each = self.per_row_at_least + self.per_row_kept
        if self.at_once is None or spare < self.at_once * each:
            return spare // each
        return (spare - self.at_once * self.per_row_at_least) // self.per_row_kept

    def _rows(self, rows: int, in_work: int) -> int:
        return min(rows, self.at_once or rows) * in_work + rows * self.per_row_kept


def expected_rate(config: PretrainConfig, split: Split, ranks: Ranks) -> Rate:
    """From what the GPU is; of an unknown one, and of a CPU, by trying the model."""
    count = ranks.world_size
    if peak := peak_of(ranks.device):
        flops_per_s = ASSUMED_MFU * peak * count
        return Rate(flops_per_s, f"{ASSUMED_MFU:.0%} of {count} x {peak / 1e12:.0f} TFLOP/s")
    tried = _try(config, split, ranks.device)
    return Rate(tried * count, f"tried: {count} x {tried / 1e9:.3g} GFLOP/s")


def times(
    config: PretrainConfig, *, seq_len: int, steps: int, evaluations: int, batches: int, rate: Rate
) -> Times:
    return Times(
        step_s=step_flops(config, seq_len) / rate.flops_per_s,
        evaluation_s=batches * evaluation_flops(config, seq_len) / rate.flops_per_s,
        evaluations=evaluations,
        steps=steps,
    )


def warning(config: PretrainConfig, expected: Times) -> str | None:
    """If evaluations take more of the run than they are worth."""
    if expected.share <= MOST_EVALUATION or expected.evaluations_s < WORTH_A_WARNING_S:
        return None
    training_s = expected.steps * expected.step_s
    wanted = training_s * MOST_EVALUATION / (1 - MOST_EVALUATION)
    longer = expected.evaluations_s / wanted
    advice = f"eval_interval={round(longer * config.epochs_per_iteration)} or more brings it below"
    if expected.evaluations == 1:
        advice = "use fewer test puzzles, or evaluators=[]"
    return (
        f"WARNING: evaluating takes {expected.share:.0%} of the run"
        f" ({shown(expected.evaluations_s)}), more than {MOST_EVALUATION:.0%}: {advice}"
    )


def memory(
    config: PretrainConfig, *, parameters: int, table: int, seq_len: int, device: torch.device
) -> Memory:
    """`table` numbers of the puzzle table are this process's."""
    arch = config.arch
    copies = 4 + config.ema
    tokens = seq_len + arch.puzzle_emb_len
    units = tokens * arch.hidden_size * arch.layer_passes[1]
    size = forward_dtype(config, device).itemsize
    found = Memory(
        fixed=4 * parameters * copies + 4 * table,
        per_row=units * ACTIVATION_BYTES * size // 2,
        per_row_at_least=units * FUSED_ACTIVATION_BYTES * size // 2,
        limit=_memory_limit(device),
    )
    if device.type != "cpu":
        return found
    return dataclasses.replace(
        found,
        per_row=units * CPU_ACTIVATION_BYTES * size // 2,
        per_row_kept=tokens * arch.hidden_size * CPU_CARRY_BYTES * size // 2,
        at_once=ROWS_IN_CACHE,
        process=CPU_OWN_BYTES + resident_bytes(),
    )


def resident_bytes() -> int:
    """What this process has in memory now; 0 where that cannot be read."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # not Linux
        return 0


def shown(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _try(config: PretrainConfig, split: Split, device: torch.device) -> float:
    """FLOP/s of one process; leaves the random numbers as they were."""
    rows = min(PROBE_ROWS, config.global_batch_size)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.inference_mode():
        bare = dataclasses.replace(split, num_puzzle_identifiers=1)
        act = build_model(config, bare, device).eval().model
        batch = batch_to_device(
            {
                "inputs": np.zeros((rows, split.seq_len), np.int32),
                "labels": np.zeros((rows, split.seq_len), np.int32),
                "puzzle_identifiers": np.zeros(rows, np.int32),
            },
            device,
        )
        carry = act.initial_carry(batch)
        for _ in range(2):
            began_s = time.perf_counter()
            carry = act(carry, batch)[0]
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            taken_s = time.perf_counter() - began_s
            if taken_s > PROBE_S:
                break
    return rows * forward_flops(config, split.seq_len) / taken_s


def _memory_limit(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
        limit = CGROUP_LIMIT.read_text().strip() if CGROUP_LIMIT.exists() else "max"
    except (OSError, ValueError, IndexError):  # not Linux
        return None
    return min(total, int(limit)) if limit.isdigit() else total
