"""What a block does after its attention's heads, on a CPU, where no gradient is wanted.

What lies between the two products of its SwiGLU is four times as wide as a state.  In PyTorch it
goes through memory several times, and each norm twice more; here a few positions at a time go
through all of it within the first cache.
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

Feed = Callable[..., Tensor]  # see `CPUFeed.__call__`
COLUMNS = 32  # both widths must be multiples


class CPUFeed:
    def __init__(self, width: int, inner: int, compiler: str) -> None:
        """Raises OSError or subprocess.SubprocessError where it cannot be made."""
        self._feed = native.library("mlp", compiler, WIDTH=width, INNER=inner).feed
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._feed.argtypes = [*[pointer] * 5, ctypes.c_float, *[number] * 2, pointer]
        self._feed.restype = None

    def __call__(
        self,
        x: Tensor,
        gate_up: Tensor,
        down: Tensor,
        epsilon: float,
        heads: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """rms_norm(y + mlp(y)), where y is rms_norm(x + projection(mixed)), or x without heads.

        x (..., width), gate_up (2 * inner, width), down (width, inner); heads is what they have
        mixed, of the size of x, and their projection (width, width).  All float32; else TypeError
        is raised.
        """
        given = [each.detach().contiguous() for each in (x, *(heads or ()), gate_up, down)]
        for each in given:
            if each.dtype != torch.float32:
                raise TypeError(f"this MLP is made for float32, not for {each.dtype}")
        out = torch.empty_like(given[0])
        addresses = [each.data_ptr() for each in given]
        if heads is None:
            addresses[1:1] = None, None
        positions, threads = x.numel() // x.shape[-1], max(torch.get_num_threads(), 1)
        self._feed(*addresses, epsilon, positions, threads, out.data_ptr())
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
    x, mixed = torch.randn(2, 37, width, generator=random)
    projection = torch.randn(width, width, generator=random) * width**-0.5
    gate_up = torch.randn(2 * inner, width, generator=random) * width**-0.5
    down = torch.randn(width, inner, generator=random) * inner**-0.5
    y = rms_norm(x + linear(mixed, projection), 1e-5)
    gate, up = linear(y, gate_up).chunk(2, dim=-1)
    plain = rms_norm(y + linear(silu(gate) * up, down), 1e-5)
    return float((feed(x, gate_up, down, 1e-5, (mixed, projection)) - plain).abs().max())
