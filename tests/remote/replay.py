"""What a CUDA graph does, on a CPU: what a step does to memory is recorded, and done again later.

As there, what the host decided while it was recorded is decided for good, tensors keep their
addresses, recording leaves everything as it was, and what would wait for the device cannot be
recorded.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from remote.recorded import Step

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal")


class CPURecorder:
    """Counts what it is asked.  It cannot record an operation of the name `breaks_at`."""

    def __init__(self, breaks_at: str | None = None) -> None:
        self.warm_ups = self.records = self.plays = 0
        self._breaks_at = breaks_at

    def warm_up(self, step: Step) -> Tensor:
        self.warm_ups += 1
        return step()

    def record(self, step: Step) -> tuple[Callable[[], None], Tensor]:
        self.records += 1
        tape = _Tape(self._breaks_at)
        try:
            with tape:
                result = step()
        finally:
            tape.undo()

        def play() -> None:
            self.plays += 1
            tape.play()

        return play, result


class _Tape(TorchDispatchMode):
    def __init__(self, breaks_at: str | None) -> None:
        super().__init__()
        self._breaks_at = breaks_at
        self._calls: list[tuple[Any, tuple, dict, Any]] = []
        self._made: dict[int, torch.UntypedStorage] = {}  # here, by address
        self._before: dict[int, tuple[Tensor, Tensor]] = {}  # of what was there and is written

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        if name in WAITS or (name == "index" and _picks_by_truth(args[1])):
            raise RuntimeError(f"{name} waits for the device")
        if name == self._breaks_at:
            raise RuntimeError(f"{name} cannot be recorded")
        for tensor in _written(func, args, kwargs):
            whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
            if whole.data_ptr() not in {*self._made, *self._before}:
                self._before[whole.data_ptr()] = whole, whole.clone()
        result = func(*args, **kwargs)
        given = {x.untyped_storage().data_ptr() for x in _tensors((args, kwargs))}
        for storage in (x.untyped_storage() for x in _tensors(result)):
            if storage.data_ptr() not in given:
                self._made[storage.data_ptr()] = storage
        self._calls.append((func, args, kwargs, result))
        return result

    @torch.no_grad()
    def undo(self) -> None:
        for whole, before in self._before.values():
            whole.copy_(before)

    @torch.no_grad()
    def play(self) -> None:
        for func, args, kwargs, result in self._calls:
            if func.is_view:
                continue
            again = func(*args, **kwargs)
            if next(_written(func, args, kwargs), None) is None:
                for old, new in zip(_tensors(result), _tensors(again), strict=True):
                    old.copy_(new)


def _written(func: Any, args: tuple, kwargs: dict) -> Iterator[Tensor]:
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    for argument in func._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(given.get(argument.name))


def _tensors(given: Any) -> list[Tensor]:
    return [x for x in tree_leaves(given) if isinstance(x, Tensor)]


def _picks_by_truth(indices: Any) -> bool:
    return any(isinstance(i, Tensor) and i.dtype == torch.bool for i in indices)
