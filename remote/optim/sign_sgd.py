"""SignSGD with weight decay, on the rows of the puzzle table that a step used."""

import torch
from torch import Tensor

from remote.models.sparse_embedding import SparseEmbedding
from remote.ranks import Ranks


class SignSGD:
    """row <- row (1 - lr wd) - lr sign(gradient), summed over all rows of the global batch.

    All shapes are those of the batch, so nothing waits for the device: rows that occur twice are
    written twice, alike.
    """

    def __init__(self, embedding: SparseEmbedding, *, weight_decay: float, ranks: Ranks) -> None:
        self._embedding, self._weight_decay, self._ranks = embedding, weight_decay, ranks

    def forget(self) -> None:
        """What was looked up by a step that did not come to its end."""
        self._embedding.used = []

    @torch.no_grad()
    def gather(self) -> tuple[Tensor, Tensor] | None:
        """Ids (B,), sorted, and their gradients (B, D), summed over equal ids, of all ranks."""
        if not self._embedding.used:
            return None
        used, leaves = zip(*self._embedding.used, strict=True)
        self._embedding.used = []
        ids, order = self._ranks.gather_rows(torch.cat(used)).long().sort(stable=True)
        gradients = self._ranks.gather_rows(torch.cat([leaf.grad for leaf in leaves]))[order]
        new = torch.ones_like(ids)
        new[1:] = ids[1:] != ids[:-1]
        group = new.cumsum(0) - 1
        summed = torch.zeros_like(gradients).index_add_(0, group, gradients)
        return ids, summed[group]

    @torch.no_grad()
    def step(
        self,
        lr: float | Tensor,
        gathered: tuple[Tensor, Tensor] | None = None,
        ok: Tensor | None = None,
    ) -> None:
        """With `ok` false (bool (), on the device) the table stays as it is."""
        gathered = gathered or self.gather()
        if gathered is None:
            return
        ids, gradients = gathered
        table = self._embedding.weights
        where, ours = self._embedding.places(ids)
        old = table[where]
        new = old * (1 - lr * self._weight_decay) - lr * gradients.sign()
        if ok is not None:
            new = torch.where(ok, new, old)
        if ours is not None:
            new, where = _aside(table, new, where, ours)
        table[where] = new


def _aside(table: Tensor, new: Tensor, where: Tensor, ours: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of other ranks write what our row 0 becomes anyway: shapes stay fixed, nothing races."""
    hits = ours & (where == 0)
    first_hit = hits.int().argmax()[None]  # as an index it would be waited for
    its_new = torch.where(hits.any(), new.index_select(0, first_hit)[0], table[0])
    return torch.where(ours[:, None], new, its_new), torch.where(ours, where, 0)
