"""A SwiGLU on a CPU with the residual sum and its norm, where no gradient is wanted.

What lies between its two products is four times as wide as a state.  In PyTorch it goes through
memory several times; here a few positions at a time go through all of it within the first cache.
It adds up in another order, so results agree to rounding; they are the same bits for every number
of threads, and for a position whichever others are asked with it.
"""

import ctypes
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from remote.models.cpu import native
from remote.models.layers import rms_norm

Feed = Callable[[Tensor, Tensor, Tensor, float], Tensor]  # see `CPUFeed.__call__`
COLUMNS = 32  # both widths must be multiples


class CPUFeed:
    def __init__(self, width: int, inner: int, compiler: str) -> None:
        """Raises OSError or subprocess.SubprocessError where it cannot be made."""
        self._feed = native.library("mlp", compiler, WIDTH=width, INNER=inner).feed
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._feed.argtypes = [*[pointer] * 3, ctypes.c_float, *[number] * 2, pointer]
        self._feed.restype = None

    def __call__(self, x: Tensor, gate_up: Tensor, down: Tensor, epsilon: float) -> Tensor:
        """rms_norm(x + mlp(x)): x (..., width), gate_up (2 * inner, width), down (width, inner).

        All float32; else TypeError is raised.
        """
        x, gate_up, down = (given.detach().contiguous() for given in (x, gate_up, down))
        for given in (x, gate_up, down):
            if given.dtype != torch.float32:
                raise TypeError(f"this MLP is made for float32, not for {given.dtype}")
        out = torch.empty_like(x)
        positions = x.numel() // x.shape[-1]
        self._feed(
            *(given.data_ptr() for given in (x, gate_up, down)),
            *(epsilon, positions, max(torch.get_num_threads(), 1), out.data_ptr()),
        )
        return out


def make(
    width: int, inner: int, environ: Mapping[str, str], which: Callable[[str], str | None]
) -> Feed | None:
    """None, and a word on why in the log, where PyTorch's is to be used."""
    if width % COLUMNS or inner % COLUMNS:
        return None
    return native.proven(
        "MLP",
        lambda compiler: CPUFeed(width, inner, compiler),
        lambda feed: _difference(feed, width, inner),
        environ,
        which,
    )


def _difference(feed: Feed, width: int, inner: int) -> float:
    """The largest one to PyTorch's."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(37, width, generator=random)
    gate_up = torch.randn(2 * inner, width, generator=random) * width**-0.5
    down = torch.randn(width, inner, generator=random) * inner**-0.5
    gate, up = linear(x, gate_up).chunk(2, dim=-1)
    plain = rms_norm(x + linear(silu(gate) * up, down), 1e-5)
    return float((feed(x, gate_up, down, 1e-5) - plain).abs().max())
