"""Layers.  Weights are float32 and cast to the activations' dtype where they are used."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, pad, scaled_dot_product_attention, silu

from remote.models.cpu.attention import CPUAttention, Turns

TRUNCATION = 2.0  # standard deviations


def truncated_normal_(tensor: Tensor, std: float) -> Tensor:
    """Cut at two deviations, and widened so that `std` is the deviation after the cut (as JAX)."""
    if std == 0:
        return tensor.zero_()
    density = math.exp(-(TRUNCATION**2) / 2) / math.sqrt(2 * math.pi)
    inside = math.erf(TRUNCATION / math.sqrt(2))
    widened = std / math.sqrt(1 - 2 * TRUNCATION * density / inside)
    cut = TRUNCATION * widened
    return nn.init.trunc_normal_(tensor, std=widened, a=-cut, b=cut)


def rms_norm(x: Tensor, eps: float) -> Tensor:
    """Without weight, in float32."""
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


class CastedLinear(nn.Module):
    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(truncated_normal_(torch.empty(outputs, inputs), inputs**-0.5))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.cast: Tensor | None = None  # the weight, while `cast_once` keeps it

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return linear(x, self._weight(x.dtype), bias)

    def halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The two halves of what `forward` gives; for a layer without bias.

        On a CPU by two products, so that each lies in one piece and their gradients need not be
        joined: the whole is larger than its cache.
        """
        weight = self._weight(x.dtype)
        if x.device.type == "cpu":
            first, second = weight.chunk(2)
            return linear(x, first), linear(x, second)
        first, second = linear(x, weight).chunk(2, dim=-1)
        return first, second

    def _weight(self, dtype: torch.dtype) -> Tensor:
        kept = self.cast is not None and self.cast.dtype == dtype
        return self.cast if kept else self.weight.to(dtype)


@contextlib.contextmanager
def cast_once(linears: Iterable[CastedLinear], dtype: torch.dtype) -> Iterator[None]:
    """Weights are cast here and not at every use inside; for passes without gradient.

    (With gradient each use casts its own, so that gradients add up in float32.)
    """
    taken = [] if dtype == torch.float32 else list(linears)
    for layer in taken:
        layer.cast = layer.weight.detach().to(dtype)
    try:
        yield
    finally:
        for layer in taken:
            layer.cast = None


class CastedEmbedding(nn.Module):
    def __init__(self, entries: int, width: int, std: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding_weight = nn.Parameter(truncated_normal_(torch.empty(entries, width), std))
        self._dtype = dtype

    def forward(self, ids: Tensor) -> Tensor:
        return embedding(ids, self.embedding_weight.to(self._dtype))


class RotaryEmbedding(nn.Module):
    """Cosines and sines of every position: two float32 [S, head_width], as `rotate` takes them."""

    def __init__(self, width: int, positions: int, theta: float) -> None:
        super().__init__()
        rates = theta ** -(torch.arange(0, width, 2).float() / width)
        angles = torch.outer(torch.arange(positions).float(), rates)
        sines = angles.sin()
        self.register_buffer("cos", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", torch.cat((-sines, sines), dim=-1), persistent=False)

    def forward(self) -> Turns:
        return self.cos, self.sin


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the halves of each head against each other, in float32.  x is (B, S, heads, width).

    The first half's sines are negative.
    """
    wide = x.float()
    other = wide.roll(x.shape[-1] // 2, dims=-1)
    return (wide * cos[:, None]).addcmul(other, sin[:, None]).to(x.dtype)


class Attention(nn.Module):
    """Every position attends to every other, padding included.

    What the heads have mixed is given before `o_proj`, which the block applies.
    """

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self._num_heads = num_heads
        self.width = hidden_size // num_heads
        self.qkv_proj = CastedLinear(hidden_size, 3 * hidden_size)
        self.o_proj = CastedLinear(hidden_size, hidden_size)
        self.mix: CPUAttention | None = None  # in place of PyTorch's

    def forward(self, x: Tensor, turns: Turns | None) -> Tensor:
        if self.mix is not None and not torch.is_grad_enabled():
            return self.mix.of_states(x, self.qkv_proj.weight, turns).view(x.shape)
        projected = self.qkv_proj(x)
        if self.mix is not None:
            return self.mix(projected, turns).view(x.shape)
        query, key, value = (t.transpose(1, 2) for t in self._heads(projected, turns))
        mixed = scaled_dot_product_attention(query, key, value)
        # Not `view`: backends differ in the strides they return.
        return mixed.transpose(1, 2).reshape(x.shape)

    def answers(self, x: Tensor, turns: Turns | None) -> Callable[[Tensor], Tensor]:
        """From the positions that ask, bool (B, S), to what they attend to: (T, D), row after row.

        May be called several times.
        """
        projected = self.qkv_proj(x)
        if (mix := self.mix) is not None:
            return lambda asking: mix(projected, turns, asking)
        heads = self._heads(projected, turns)
        return lambda asking: self._answer(*heads, asking)

    def _heads(self, projected: Tensor, turns: Turns | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: (B, S, heads, width) each."""
        heads = projected.unflatten(-1, (3 * self._num_heads, -1))
        asking, value = heads.split((2 * self._num_heads, self._num_heads), dim=-2)
        if turns is not None:
            asking = rotate(asking, *turns)
        return *asking.chunk(2, dim=-2), value

    def _answer(self, query: Tensor, key: Tensor, value: Tensor, asking: Tensor) -> Tensor:
        asked = zip(
            query[asking].split(asking.sum(1).tolist()),
            key.transpose(1, 2).unbind(),
            value.transpose(1, 2).unbind(),
            strict=True,
        )
        mixed = [
            scaled_dot_product_attention(q.transpose(0, 1)[None], k[None], v[None])
            .squeeze(0)
            .transpose(0, 1)
            .flatten(1)
            for q, k, v in asked
            if len(q)
        ]
        return torch.cat(mixed) if mixed else query[asking].flatten(1)


class SwiGLU(nn.Module):
    def __init__(self, width: int, expansion: float) -> None:
        super().__init__()
        inner = inner_width(width, expansion)
        self.widths = width, inner
        self.gate_up_proj = CastedLinear(width, 2 * inner)
        self.down_proj = CastedLinear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj.halves(x)
        return self.down_proj(silu(gate) * up)


class ConvSwiGLU(nn.Module):
    """URM's MLP: a SwiGLU whose product also sees the position before.

    Its convolution is stored and computed in bfloat16 whatever the activations are, so its result
    is bfloat16 too.
    """

    def __init__(self, width: int, expansion: float) -> None:
        super().__init__()
        inner = inner_width(width, expansion)
        self.gate_up_proj = CastedLinear(width, 2 * inner)
        self.dwconv = NeighbourConv(inner)
        self.down_proj = CastedLinear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj.halves(x)
        return self.down_proj(silu(self.dwconv(silu(gate) * up)))


class NeighbourConv(nn.Module):
    """A depthwise convolution of kernel 2 over the sequence: (B, S, C) to bfloat16 (B, S, C).

    Written as a sum, which compilers fuse, with the parameters of the Conv1d it stands for:
    padding 1, cut to S, so a position sees itself and the one before.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        bound = 2**-0.5  # Conv1d's own start for a fan-in of 2
        weight = torch.empty(channels, 1, 2).uniform_(-bound, bound)
        bias = torch.empty(channels).uniform_(-bound, bound)
        self.weight = nn.Parameter(weight.bfloat16())
        self.bias = nn.Parameter(bias.bfloat16())

    def forward(self, x: Tensor) -> Tensor:
        here = x.bfloat16().float()
        before = pad(here, (0, 0, 1, 0))[:, :-1]
        past, present = self.weight[:, 0].float().unbind(-1)
        return (past * before + present * here + self.bias.float()).bfloat16()


def inner_width(width: int, expansion: float) -> int:
    return -(-round(expansion * width * 2 / 3) // 256) * 256
