"""Attention on a CPU, forward and backward.

For narrow heads PyTorch's own spends much of its time outside of its products: they are of matrices
16 wide, and large ones in between go through memory, as do queries and keys when they are turned
and laid out.  Here all of that happens while they are in registers and in the first cache.  It adds
up in another order, so results agree to rounding; they are the same bits for every number of
threads.  In float32, and differentiable once.
"""

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from remote.models.cpu import native

Turns = tuple[Tensor, Tensor]  # cosines and sines of rotary positions, float32 [S, head_width]
Mix = Callable[[Tensor, Turns | None, Tensor | None], Tensor]  # see `CPUAttention.__call__`
LANES = 16  # a head's width must be a multiple


class CPUAttention:
    def __init__(self, width: int, compiler: str) -> None:
        """Raises OSError or subprocess.SubprocessError where it cannot be made."""
        self.width = width
        library = native.library("attention", compiler, HEAD_WIDTH=width)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        given = [*[pointer] * 3, *[number] * 3, *[pointer] * 2, number]
        self.attend, self.learn = library.attend, library.learn
        self.attend.argtypes = [*given, *[pointer] * 2]
        self.learn.argtypes = [*given, *[pointer] * 4]
        self.attend.restype = self.learn.restype = None

    def __call__(
        self, projected: Tensor, turns: Turns | None, asking: Tensor | None = None
    ) -> Tensor:
        """(T, heads * width): what the positions `asking` (bool (B, S); None: all) attend to.

        projected (B, S, 3 * heads * width), float32: queries, keys and values; the former two are
        turned here.  Raises TypeError for another dtype.
        """
        if projected.dtype != torch.float32:
            raise TypeError(f"this attention is made for float32, not for {projected.dtype}")
        rows, positions = projected.shape[:2]
        if asking is None:
            asked = torch.arange(rows * positions)
            firsts = torch.arange(0, len(asked) + 1, positions)
        else:
            asked = asking.flatten().nonzero()[:, 0]
            firsts = torch.cat((torch.zeros(1, dtype=torch.int64), asking.sum(1).cumsum(0)))
        mixed: Tensor = _Attend.apply(projected, self, turns, asked, firsts)
        return mixed


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        projected: Tensor,
        own: CPUAttention,
        turns: Turns | None,
        asked: Tensor,
        firsts: Tensor,
    ) -> Tensor:
        projected = projected.contiguous()
        heads = projected.shape[-1] // 3 // own.width
        out = torch.empty(len(asked), heads * own.width)
        log_totals = torch.empty(len(asked), heads)
        own.attend(
            *_given(own, projected, turns, asked, firsts), out.data_ptr(), log_totals.data_ptr()
        )
        ctx.save_for_backward(projected, asked, firsts, out, log_totals)
        ctx.own, ctx.turns = own, turns
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        projected, asked, firsts, out, log_totals = ctx.saved_tensors
        everybody = len(asked) == projected.shape[0] * projected.shape[1]
        found = (torch.empty_like if everybody else torch.zeros_like)(projected)
        slopes = slopes.contiguous()
        ctx.own.learn(
            *_given(ctx.own, projected, ctx.turns, asked, firsts),
            *(out.data_ptr(), log_totals.data_ptr(), slopes.data_ptr(), found.data_ptr()),
        )
        return found, None, None, None, None


def _given(
    own: CPUAttention, projected: Tensor, turns: Turns | None, asked: Tensor, firsts: Tensor
) -> tuple[int, ...]:
    rows, positions, width = projected.shape
    heads = width // 3 // own.width
    return (
        *(projected.data_ptr(), *((t.data_ptr() for t in turns) if turns else (0, 0))),
        *(rows, positions, heads, asked.data_ptr(), firsts.data_ptr()),
        max(min(torch.get_num_threads(), rows * heads), 1),
    )


def make(width: int, environ: Mapping[str, str], which: Callable[[str], str | None]) -> Mix | None:
    """None, and a word on why in the log, where PyTorch's is to be used."""
    if width % LANES:
        return None
    return native.proven(
        "attention",
        lambda compiler: CPUAttention(width, compiler),
        lambda mix: _difference(mix, width),
        environ,
        which,
    )


def _difference(mix: Mix, width: int) -> float:
    """The largest one to PyTorch's attention, of what is found and of its gradient."""
    random = torch.Generator().manual_seed(0)
    projected = torch.randn(2, 37, 3 * 2 * width, generator=random)
    slopes = torch.randn(2 * 37, 2 * width, generator=random)
    found = []
    for attend in (mix, _plain(width)):
        leaf = projected.clone().requires_grad_()
        with torch.enable_grad():
            mixed = attend(leaf, None, None)
        found.append((mixed.detach(), *torch.autograd.grad(mixed, leaf, slopes)))
    return max(float((a - b).abs().max()) for a, b in zip(*found, strict=True))


def _plain(width: int) -> Mix:
    def attend(projected: Tensor, turns: None, asking: None) -> Tensor:
        heads = projected.unflatten(-1, (3, -1, width)).permute(2, 0, 3, 1, 4)
        return scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2).flatten(0, 1)

    return attend
