"""One vector per puzzle: a table too large for a dense gradient."""

import torch
from torch import Tensor, nn


class SparseEmbedding(nn.Module):
    """Rows are read into a small leaf whose gradient `SignSGD` applies to the table.

    The table is a buffer, so that no dense optimiser, average or gradient ever holds its like: with
    1000 augmentations it has 1.2 million rows (2.4 GB).
    """

    def __init__(self, rows: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weights", torch.zeros(rows, width))
        self._dtype = dtype
        self.used: tuple[Tensor, Tensor] | None = None  # ids (B,), leaf (B, width) of this step

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.weights[ids]
        if self.training and torch.is_grad_enabled():
            rows = rows.requires_grad_()
            self.used = (ids, rows)
        return rows.to(self._dtype)
