"""How much memory a step takes: measured on few rows, after many did not fit.

Written for GPUs and not yet measured on one.
"""

import gc

import torch

from remote.dataset.batches import Batch
from remote.training import Training, to_device


def memory_of_rows(
    training: Training, batch: Batch, device: torch.device
) -> tuple[int, int | None]:
    """Bytes that are taken before a step, and those each row adds; None if it cannot be known."""
    if device.type != "cuda":
        return 0, None
    training.flat.zero_grad()
    gc.collect()
    torch.cuda.empty_cache()
    fixed = torch.cuda.memory_allocated(device)
    few = max(len(batch["inputs"]) // 8, 1)
    torch.cuda.reset_peak_memory_stats(device)
    try:
        _try_step(training, {name: rows[:few] for name, rows in batch.items()}, device)
    except torch.OutOfMemoryError:
        return fixed, None
    return fixed, (torch.cuda.max_memory_allocated(device) - fixed) // few


def _try_step(training: Training, batch: Batch, device: torch.device) -> None:
    """Forward and backward; alone, for the other ranks wait elsewhere."""
    embedding = getattr(training.model.model.inner, "puzzle_emb", None)
    rows = to_device(batch, device)
    if embedding is not None:
        embedding.stay_alone()
        rows["puzzle_identifiers"] = torch.zeros_like(rows["puzzle_identifiers"])
    _, loss, _, _ = training.model(training.model.model.initial_carry(rows), rows)
    loss.backward()
