"""One vector per puzzle: a table too large for dense gradients, or for each GPU to have whole."""

import torch
from torch import Tensor, nn

from remote.ranks import Ranks


class SparseEmbedding(nn.Module):
    """Rows are read into a small leaf whose gradient `SignSGD` applies to the table.

    The table is a buffer, so that no dense optimiser, average or gradient ever holds its like: with
    1000 augmentations it has 1.2 million rows (2.4 GB).  `split_over` leaves each rank an equal
    part of consecutive rows.
    """

    def __init__(self, rows: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.rows = rows  # of all ranks
        self.first = 0  # the table's row that is this rank's row 0
        self.register_buffer("weights", torch.zeros(rows, width))
        self._dtype = dtype
        self._ranks: Ranks | None = None  # if split
        self.used: list[tuple[Tensor, Tensor]] = []  # ids (B,), leaf (B, width) of this step

    @property
    def is_split(self) -> bool:
        return self._ranks is not None

    def split_over(self, ranks: Ranks) -> None:
        """Every rank calls it, before the first use; there are no fewer rows than ranks."""
        self._ranks = ranks
        self.first = ranks.rank * self.rows // ranks.world_size
        end = (ranks.rank + 1) * self.rows // ranks.world_size
        self.weights = self.weights[self.first : end].clone()

    def stay_alone(self) -> None:
        """Ask no other rank again; ids then count from this rank's first row."""
        self._ranks = None

    @torch.compiler.disable
    def forward(self, ids: Tensor) -> Tensor:
        """(B, width) of ids (B,); with a split table all ranks call it alike."""
        rows = self._read(ids)
        if self.training and torch.is_grad_enabled():
            rows = rows.requires_grad_()
            self.used.append((ids, rows))
        return rows.to(self._dtype)

    def places(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Where ids lie in this rank's part, and whether they do (None: all of them)."""
        if self._ranks is None:
            return ids, None
        local = ids - self.first
        ours = (local >= 0) & (local < len(self.weights))
        return local.clamp(0, len(self.weights) - 1), ours

    def _read(self, ids: Tensor) -> Tensor:
        if self._ranks is None:
            return self.weights[ids]
        # Plain tensors also in inference mode: gloo's threads write into them.
        with torch.inference_mode(mode=False), torch.no_grad():
            where, ours = self.places(self._ranks.gather_rows(ids.clone()).long())
            # Every row comes from one rank, the others add zero: exact.
            rows = self._ranks.sum(torch.where(ours[:, None], self.weights[where], 0))
            return rows[self._ranks.rank * len(ids) :][: len(ids)].clone()
