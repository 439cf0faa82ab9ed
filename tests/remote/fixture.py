"""The fixed weights and batch on which upstream's numbers were measured."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def fill(model: nn.Module) -> None:
    """Tensor i in order of names, element j: 0.05 sin(0.1 j + i)."""
    weights = model.state_dict()
    for i, name in enumerate(sorted(weights)):
        j = torch.arange(weights[name].numel(), dtype=torch.float64)
        weights[name].copy_((0.05 * torch.sin(0.1 * j + i)).reshape(weights[name].shape))


def make_batch(rows: int = 4, seq_len: int = 900) -> dict[str, Tensor]:
    b, s = torch.arange(rows)[:, None], torch.arange(seq_len)[None]
    labels = ((5 * b + 11 * s) % 12).int()
    return {
        "inputs": ((7 * b + 3 * s) % 12).int(),
        "labels": labels.masked_fill(labels == 0, -100),
        "puzzle_identifiers": torch.arange(1, rows + 1, dtype=torch.int32),
    }
