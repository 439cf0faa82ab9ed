"""All parameters as one vector per dtype, each parameter a view of it.

So the optimiser, the average and the sum over ranks are a few operations on long vectors instead of
dozens on short ones.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from remote.ranks import Ranks

ALIGNMENT = 64  # elements: kernels read aligned rows faster


class Flat:
    """Takes over the storage of a model's parameters and gradients; the model must stay put."""

    def __init__(self, model: nn.Module) -> None:
        self._parts: list[dict[str, tuple[int, torch.Size]]] = []  # of each vector: offset, shape
        self.vectors: list[nn.Parameter] = []
        parameters = dict(model.named_parameters())
        for dtype in sorted({p.dtype for p in parameters.values()}, key=str, reverse=True):
            self._take({name: p for name, p in parameters.items() if p.dtype == dtype})
        sizes = [vector.numel() for vector in self.vectors]
        # Sums over ranks are taken in float32; the last element is for the loss.
        self._bucket = torch.zeros(sum(sizes) + 1, device=self.vectors[0].device)
        self._spans = self._bucket[:-1].split(sizes)
        for vector, span, part in zip(self.vectors, self._spans, self._parts, strict=True):
            own = span if vector.dtype == torch.float32 else torch.zeros_like(vector)
            vector.grad = own
            for name, view in _views(own, part):
                parameters[name].grad = view

    def named(self, vectors: list[Tensor]) -> dict[str, Tensor]:
        """Views by parameter name of vectors that are laid out like the parameters."""
        pairs = zip(vectors, self._parts, strict=True)
        return {name: view for vector, part in pairs for name, view in _views(vector, part)}

    def zero_grad(self) -> None:
        self._bucket.zero_()
        for vector in self.vectors:
            vector.grad.zero_()

    def sum_over(self, ranks: Ranks, loss: Tensor) -> Tensor:
        """Gradients become their sums over all ranks; returns the summed loss (float32 ())."""
        self._bucket[-1] = loss
        for vector, span in zip(self.vectors, self._spans, strict=True):
            span.copy_(vector.grad)  # nothing, if it is the gradient itself
        ranks.sum(self._bucket)
        for vector, span in zip(self.vectors, self._spans, strict=True):
            vector.grad.copy_(span)
        return self._bucket[-1]

    def all_finite(self) -> Tensor:
        """Whether every gradient, and the loss, is a number: bool (), on the device."""
        return self._bucket.sum().isfinite()

    @torch.no_grad()
    def _take(self, parameters: dict[str, nn.Parameter]) -> None:
        part, end = {}, 0
        for name, parameter in parameters.items():
            part[name] = (end, parameter.shape)
            end += -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
        first = next(iter(parameters.values()))
        vector = nn.Parameter(torch.zeros(end, dtype=first.dtype, device=first.device))
        for name, view in _views(vector.data, part):
            view.copy_(parameters[name])
            parameters[name].data = view
        self.vectors.append(vector)
        self._parts.append(part)


def _views(vector: Tensor, part: dict[str, tuple[int, torch.Size]]) -> Iterator[tuple[str, Tensor]]:
    for name, (offset, shape) in part.items():
        yield name, vector[offset : offset + shape.numel()].view(shape)
