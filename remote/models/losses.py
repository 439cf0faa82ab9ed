"""Token losses: float (B, S), zero where the label is ignored."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from remote.dataset.grids import IGNORE_LABEL

TINY = 1e-30


def stablemax_cross_entropy(
    logits: Tensor, labels: Tensor, *, fixed_shapes: bool = False
) -> Tensor:
    """Cross entropy with s(x) = x + 1, or 1 / (1 - x) below zero, in place of exp; in float64."""
    return _cross_entropy(_log_stablemax, logits, labels, fixed_shapes=fixed_shapes)


def softmax_cross_entropy(logits: Tensor, labels: Tensor, *, fixed_shapes: bool = False) -> Tensor:
    log_shares = partial(log_softmax, dim=-1, dtype=torch.float32)
    return _cross_entropy(log_shares, logits, labels, fixed_shapes=fixed_shapes)


def _log_stablemax(logits: Tensor) -> Tensor:
    x = logits.double()
    # Both branches are computed; each is fed only where it is finite.
    scores = torch.where(x < 0, 1 / (1 - x.clamp(max=0) + TINY), x + 1)
    return torch.log(scores / scores.sum(dim=-1, keepdim=True))


def _cross_entropy(
    log_shares: Callable[[Tensor], Tensor], logits: Tensor, labels: Tensor, *, fixed_shapes: bool
) -> Tensor:
    counted = labels != IGNORE_LABEL
    # Elsewhere than on a CPU one would have to wait for how many there are.
    if logits.device.type == "cpu" and not fixed_shapes:
        found = _pick(log_shares(logits[counted]), labels[counted])
        return found.new_zeros(labels.shape).index_put((counted,), found)
    found = _pick(log_shares(logits), torch.where(counted, labels, 0))
    return torch.where(counted, found, 0)


def _pick(log_shares: Tensor, labels: Tensor) -> Tensor:
    return -log_shares.gather(-1, labels.long()[..., None])[..., 0]


LOSSES = {
    "stablemax_cross_entropy": stablemax_cross_entropy,
    "softmax_cross_entropy": softmax_cross_entropy,
}
