"""The moving average of the weights, which is what gets evaluated."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class EMA:
    """Parameters only: the puzzle table and the initial states are buffers and not averaged."""

    def __init__(self, model: nn.Module, rate: float) -> None:
        self._parameters = dict(model.named_parameters())
        self._rate = rate
        self.shadow = {name: p.detach().clone() for name, p in self._parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        current = list(self._parameters.values())
        torch._foreach_lerp_(list(self.shadow.values()), current, 1 - self._rate)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the averaged weights inside, its own again afterwards."""
        own = {name: p.detach().clone() for name, p in self._parameters.items()}
        self._copy(self.shadow)
        try:
            yield
        finally:
            self._copy(own)

    def load(self, shadow: dict[str, Tensor]) -> None:
        for name, tensor in self.shadow.items():
            tensor.copy_(shadow[name])

    @torch.no_grad()
    def _copy(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(weights[name])
