"""SignSGD with weight decay, on the rows of the puzzle table that a step used."""

import torch

from remote.models.sparse_embedding import SparseEmbedding
from remote.ranks import Ranks


class SignSGD:
    """row <- row (1 - lr wd) - lr sign(gradient), summed over all rows of the global batch."""

    def __init__(self, embedding: SparseEmbedding, *, weight_decay: float, ranks: Ranks) -> None:
        self._embedding, self._weight_decay, self._ranks = embedding, weight_decay, ranks

    @torch.no_grad()
    def step(self, lr: float) -> None:
        if self._embedding.used is None:
            return
        ids, leaf = self._embedding.used
        self._embedding.used = None
        ids = self._ranks.gather_rows(ids)
        gradients = self._ranks.gather_rows(leaf.grad)
        touched, position = ids.unique(return_inverse=True)
        summed = gradients.new_zeros(len(touched), gradients.shape[1])
        summed.index_add_(0, position, gradients)
        table = self._embedding.weights
        table[touched] = table[touched] * (1 - lr * self._weight_decay) - lr * summed.sign()
