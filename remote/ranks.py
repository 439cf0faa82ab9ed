"""The processes of a run.  One process alone needs no process group, and none is made."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from remote.dataset.batches import Shard
from remote.machine import choose_device, local_ranks

_KEPT: list[Any] = []  # groups, until the process ends: see `joined`


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the others.  Objects go through gloo, as plain data, never tensors."""

    rank: int
    world_size: int
    device: torch.device
    control: Any = None  # a gloo group, if there is more than one process

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def shard(self) -> Shard:
        return Shard(self.rank, self.world_size)

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        if self.control is not None:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), src=0)

    def sum(self, tensor: Tensor) -> Tensor:
        if self.control is not None:
            dist.all_reduce(tensor)
        return tensor

    def gather_rows(self, tensor: Tensor) -> Tensor:
        """The rows of all ranks, in order of rank; every rank has equally many."""
        if self.control is None:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    def gather(self, value: Any) -> list[Any]:
        """Plain values of all ranks, on all ranks."""
        if self.control is None:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def any(self, *, flag: bool) -> bool:
        return bool(self.most(int(flag)))

    def most(self, value: int) -> int:
        """The greatest value of all ranks, on all ranks."""
        if self.control is None:
            return value
        shared = torch.tensor([value])
        dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=self.control)
        return int(shared.item())

    def wait(self) -> None:
        if self.control is not None:
            dist.barrier(group=self.control)


@contextlib.contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """As torchrun's environment says; `device` is auto, cpu or cuda.

    A group is left, but never deleted: until 2.8 PyTorch held the interpreter's lock while it ended
    the threads of a gloo group, and one that wanted this lock, to let go of the last tensor, kept
    both waiting for ever (pytorch/pytorch#154976).
    """
    local_rank, count = local_ranks()
    chosen = choose_device(
        device, gpus=torch.cuda.device_count(), local_rank=local_rank, local_ranks=count
    )
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    if world_size == 1:
        yield Ranks(0, 1, chosen)
        return
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    control = dist.new_group(backend="gloo")
    _KEPT.extend((dist.group.WORLD, control))
    try:
        yield Ranks(dist.get_rank(), world_size, chosen, control)
    finally:
        dist.destroy_process_group()
