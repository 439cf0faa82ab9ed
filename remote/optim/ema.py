"""The moving average of the weights, which is what gets evaluated."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from remote.optim.flat import Flat


class EMA:
    """Parameters only: the puzzle table and the initial states are buffers and not averaged.

    In float32 also where the weights are bfloat16, which has no room for a step of a thousandth.
    """

    def __init__(self, flat: Flat, rate: float) -> None:
        self._flat, self._rate = flat, rate
        self.vectors = [vector.detach().float().clone() for vector in flat.vectors]

    @property
    def shadow(self) -> dict[str, Tensor]:
        """The averages by parameter name."""
        return self._flat.named(self.vectors)

    @torch.no_grad()
    def update(self) -> None:
        current = [vector.float() for vector in self._flat.vectors]
        torch._foreach_lerp_(self.vectors, current, 1 - self._rate)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the averaged weights inside, its own again afterwards."""
        own = [vector.detach().clone() for vector in self._flat.vectors]
        self._copy(self.vectors)
        try:
            yield
        finally:
            self._copy(own)

    @torch.no_grad()
    def load(self, shadow: dict[str, Tensor]) -> None:
        for name, tensor in self.shadow.items():
            tensor.copy_(shadow[name])

    @torch.no_grad()
    def _copy(self, vectors: list[Tensor]) -> None:
        for own, new in zip(self._flat.vectors, vectors, strict=True):
            own.copy_(new)
