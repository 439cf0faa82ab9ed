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
from torch.nn.functional import linear, scaled_dot_product_attention

from remote.models.cpu import native

Turns = tuple[Tensor, Tensor]  # cosines and sines of rotary positions, float32 [S, head_width]
LANES = 16  # a head's width must be a multiple


class CPUAttention:
    def __init__(self, width: int, hidden: int, compiler: str) -> None:
        """For heads of one width, and states of another.

        Raises OSError or subprocess.SubprocessError where it cannot be made.
        """
        self.width = width
        library = native.library("attention", compiler, HEAD_WIDTH=width, HIDDEN=hidden)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        given = [*[pointer] * 3, *[number] * 3, *[pointer] * 2, number]
        self.attend, self.learn = library.attend, library.learn
        self._states_attend = library.states_attend
        self.attend.argtypes = [*given, *[pointer] * 2]
        self.learn.argtypes = [*given, *[pointer] * 4]
        self._states_attend.argtypes = [pointer, *given, pointer]
        self.attend.restype = self.learn.restype = self._states_attend.restype = None

    def __call__(
        self, projected: Tensor, turns: Turns | None, asking: Tensor | None = None
    ) -> Tensor:
        """(T, heads * width): what the positions `asking` (bool (B, S); None: all) attend to.

        projected (B, S, 3 * heads * width), float32: queries, keys and values; the former two are
        turned here.  Raises TypeError for another dtype.
        """
        _require_float32(projected)
        mixed: Tensor = _Attend.apply(projected, self, turns, *_asked(projected, asking))
        return mixed

    @torch.no_grad()
    def of_states(
        self, states: Tensor, matrix: Tensor, turns: Turns | None, asking: Tensor | None = None
    ) -> Tensor:
        """The same of projected = linear(states, matrix), without gradient.

        states (B, S, hidden), matrix (3 * heads * width, hidden): a head's are projected when it is
        its turn, and stay near.
        """
        _require_float32(states, matrix)
        states, matrix = states.contiguous(), matrix.contiguous()
        rows, positions, heads = *states.shape[:2], len(matrix) // 3 // self.width
        asked, firsts = _asked(states, asking)
        out = torch.empty(len(asked), heads * self.width)
        self._states_attend(
            *(states.data_ptr(), matrix.data_ptr(), *_addresses(turns), rows, positions, heads),
            *(asked.data_ptr(), firsts.data_ptr(), _threads(rows * heads), out.data_ptr()),
        )
        return out


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
        *(projected.data_ptr(), *_addresses(turns), rows, positions, heads),
        *(asked.data_ptr(), firsts.data_ptr(), _threads(rows * heads)),
    )


def _asked(given: Tensor, asking: Tensor | None) -> tuple[Tensor, Tensor]:
    """The positions that ask, counted on over rows, and where each row's begin."""
    rows, positions = given.shape[:2]
    if asking is None:
        asked = torch.arange(rows * positions)
        return asked, torch.arange(0, len(asked) + 1, positions)
    asked = asking.flatten().nonzero()[:, 0]
    return asked, torch.cat((torch.zeros(1, dtype=torch.int64), asking.sum(1).cumsum(0)))


def _addresses(turns: Turns | None) -> tuple[int, int]:
    return (turns[0].data_ptr(), turns[1].data_ptr()) if turns else (0, 0)


def _threads(jobs: int) -> int:
    return max(min(torch.get_num_threads(), jobs), 1)


def _require_float32(*tensors: Tensor) -> None:
    for each in tensors:
        if each.dtype != torch.float32:
            raise TypeError(f"this attention is made for float32, not for {each.dtype}")


def make(
    width: int, hidden: int, environ: Mapping[str, str], which: Callable[[str], str | None]
) -> CPUAttention | None:
    """None, and a word on why in the log, where PyTorch's is to be used."""
    if width % LANES:
        return None
    return native.proven(
        "attention",
        lambda compiler: CPUAttention(width, hidden, compiler),
        lambda own: _difference(own, width, hidden),
        environ,
        which,
    )


def _difference(own: CPUAttention, width: int, hidden: int) -> float:
    """The largest one to PyTorch's attention, of what is found and of its gradient."""
    random = torch.Generator().manual_seed(0)
    states = torch.randn(2, 37, hidden, generator=random)
    matrix = torch.randn(3 * 2 * width, hidden, generator=random) * hidden**-0.5
    slopes = torch.randn(2 * 37, 2 * width, generator=random)
    projected = linear(states, matrix)
    found = []
    for attend in (own, _plain(width)):
        leaf = projected.clone().requires_grad_()
        with torch.enable_grad():
            mixed = attend(leaf, None, None)
        found.append((mixed.detach(), *torch.autograd.grad(mixed, leaf, slopes)))
    pairs = [*zip(*found, strict=True), (own.of_states(states, matrix, None), found[1][0])]
    return max(float((a - b).abs().max()) for a, b in pairs)


def _plain(width: int) -> Callable[[Tensor, None, None], Tensor]:
    def attend(projected: Tensor, turns: None, asking: None) -> Tensor:
        heads = projected.unflatten(-1, (3, -1, width)).permute(2, 0, 3, 1, 4)
        return scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2).flatten(0, 1)

    return attend
