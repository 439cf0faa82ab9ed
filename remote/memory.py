"""How much memory a batch takes: measured on few rows, after many did not fit.

Written for GPUs and not yet measured on one.
"""

import gc
from collections.abc import Callable

import torch

from remote import evidence
from remote.dataset.batches import Batch
from remote.machine import look
from remote.ranks import Ranks
from remote.training import Training, batch_to_device

Trial = Callable[[Training, Batch, torch.device], None]


class OutOfMemory(Exception):
    """A batch that does not fit."""


def out_of_memory(
    error: torch.OutOfMemoryError, training: Training, batch: Batch, ranks: Ranks, trial: Trial
) -> OutOfMemory:
    """What to raise when this rank's batch did not fit; `trial` does the same with fewer rows."""
    error.__traceback__ = None  # its frames, and functions inside them, hold what did fit of it
    fixed, each = memory_of_rows(training, batch, ranks.device, trial)
    return OutOfMemory(
        evidence.out_of_memory(
            look(ranks.device),
            rows=len(batch["inputs"]),
            ranks=ranks.world_size,
            fixed_bytes=fixed,
            row_bytes=each,
        )
    )


def memory_of_rows(
    training: Training, batch: Batch, device: torch.device, trial: Trial
) -> tuple[int, int | None]:
    """Bytes that are taken before a batch, and those each row adds; None if it cannot be known."""
    if device.type != "cuda":
        return 0, None
    training.flat.zero_grad()
    gc.collect()
    torch.cuda.empty_cache()
    fixed = torch.cuda.memory_allocated(device)
    few = max(len(batch["inputs"]) // 8, 1)
    torch.cuda.reset_peak_memory_stats(device)
    try:
        trial(training, {name: rows[:few] for name, rows in batch.items()}, device)
    except torch.OutOfMemoryError:
        return fixed, None
    return fixed, (torch.cuda.max_memory_allocated(device) - fixed) // few


def try_step(training: Training, batch: Batch, device: torch.device) -> None:
    """Forward and backward."""
    rows = _alone(training, batch, device)
    _, loss, _, _ = training.model(training.model.model.initial_carry(rows), rows)
    loss.backward()


def try_answer(training: Training, batch: Batch, device: torch.device) -> None:
    """All ACT steps, as an evaluation takes them."""
    training.model.answer(_alone(training, batch, device))


def _alone(training: Training, batch: Batch, device: torch.device) -> dict[str, torch.Tensor]:
    """On the device, and asking no other rank: those wait elsewhere."""
    embedding = getattr(training.model.model.inner, "puzzle_emb", None)
    rows = batch_to_device(batch, device)
    if embedding is not None:
        embedding.stay_alone()
        rows["puzzle_identifiers"] = torch.zeros_like(rows["puzzle_identifiers"])
    return rows
