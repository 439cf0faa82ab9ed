"""Token losses: float (B, S), zero where the label is ignored."""

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from remote.dataset.grids import IGNORE_LABEL

TINY = 1e-30


def stablemax_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy with s(x) = x + 1, or 1 / (1 - x) below zero, in place of exp; in float64."""
    x = logits.double()
    # Both branches are computed; each is fed only where it is finite.
    scores = torch.where(x < 0, 1 / (1 - x.clamp(max=0) + TINY), x + 1)
    log_shares = torch.log(scores / scores.sum(dim=-1, keepdim=True))
    return _pick(log_shares, labels)


def softmax_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return _pick(log_softmax(logits.float(), dim=-1), labels)


def _pick(log_shares: Tensor, labels: Tensor) -> Tensor:
    counted = labels != IGNORE_LABEL
    chosen = torch.where(counted, labels, 0).long()[..., None]
    return torch.where(counted, -log_shares.gather(-1, chosen)[..., 0], 0)


LOSSES = {
    "stablemax_cross_entropy": stablemax_cross_entropy,
    "softmax_cross_entropy": softmax_cross_entropy,
}
