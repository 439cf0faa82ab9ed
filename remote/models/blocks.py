"""One block of a stack: attention, then an MLP, each followed by a norm of the residual sum."""

import torch
from torch import Tensor, nn

from remote.arch import Arch
from remote.models.cpu.mlp import Feed
from remote.models.layers import Attention, ConvSwiGLU, SwiGLU, Turns, rms_norm


class Block(nn.Module):
    def __init__(self, config: Arch, length: int) -> None:
        super().__init__()
        self._eps = config.rms_norm_eps
        if config.mlp_t:
            self.mlp_t = SwiGLU(length, config.expansion)
        else:
            self.self_attn = Attention(config.hidden_size, config.num_heads)
        mlp = ConvSwiGLU if config.conv_mlp else SwiGLU
        self.mlp = mlp(config.hidden_size, config.expansion)
        self.feed: Feed | None = None  # in place of what follows, where no gradient is wanted

    def forward(self, x: Tensor, turns: Turns | None) -> Tensor:
        if not hasattr(self, "mlp_t"):
            return self._after(x, self.self_attn(x, turns))
        across = x.transpose(1, 2)  # (B, D, S)
        return self._after(rms_norm(across + self.mlp_t(across), self._eps).transpose(1, 2))

    def learning_at(self, x: Tensor, turns: Turns | None, positions: Tensor) -> Tensor:
        """As `forward`, where the output's gradient is zero outside of `positions` (bool (B, S)).

        So nothing is kept of the other positions' queries and MLP, nor taken back through them.
        For blocks that mix positions by attention alone.
        """
        answer = self.self_attn.answers(x, turns)
        learning = self._after(x[positions], answer(positions))
        with torch.no_grad():
            others = ~positions
            whole = torch.empty_like(x)
            whole[others] = self._after(x[others], answer(others))
        return whole.index_put((positions,), learning)

    def _after(self, x: Tensor, mixed: Tensor | None = None) -> Tensor:
        """`mixed`, by the attention's heads, is added to x before all else."""
        if self.feed is not None and not torch.is_grad_enabled():
            weights = self.mlp.gate_up_proj.weight, self.mlp.down_proj.weight
            heads = None if mixed is None else (mixed, self.self_attn.o_proj.weight)
            return self.feed(x, *weights, self._eps, heads)
        if mixed is not None:
            x = rms_norm(x + self.self_attn.o_proj(mixed), self._eps)
        return rms_norm(x + self.mlp(x), self._eps)


def run(layers: nn.ModuleList, state: Tensor, injection: Tensor, turns: Turns | None) -> Tensor:
    """All layers over the sum of two: the one function that is compiled."""
    hidden = state + injection
    for layer in layers:
        hidden = layer(hidden, turns)
    return hidden


def run_learning_at(
    layers: nn.ModuleList,
    state: Tensor,
    injection: Tensor,
    turns: Turns | None,
    positions: Tensor,
) -> Tensor:
    """The same, where the result's gradient is zero outside of `positions`."""
    return layers[-1].learning_at(run(layers[:-1], state, injection, turns), turns, positions)
