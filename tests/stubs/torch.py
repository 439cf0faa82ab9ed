"""A stand-in for torch on a machine without GPU: as much as one step of an optimiser needs.

GPUS lists compute capabilities ("9.0 9.0"), CUDA is the release this torch is built for.
"""

import os
from types import SimpleNamespace

__version__ = os.environ.get("TORCH", "2.5.1+cu124")
version = SimpleNamespace(cuda=os.environ.get("CUDA", "12.4"))
_gpus = [tuple(map(int, text.split("."))) for text in os.environ.get("GPUS", "").split()]
cuda = SimpleNamespace(
    device_count=lambda: len(_gpus),
    get_device_capability=lambda index: _gpus[index],
    set_device=lambda index: _gpus[index],
)


class Tensor:
    def __init__(self, values: list[float]) -> None:
        self.values = values
        self.grad: Tensor | None = None

    def tolist(self) -> list[float]:
        return self.values


def full(shape: tuple[int], value: float, device: str) -> Tensor:
    assert int(device.removeprefix("cuda:")) < len(_gpus)
    return Tensor([value] * shape[0])


def full_like(tensor: Tensor, value: float) -> Tensor:
    return Tensor([value] * len(tensor.values))


nn = SimpleNamespace(Parameter=lambda tensor: tensor)
