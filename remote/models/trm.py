"""TRM, the tiny recursive model ("Less is More: Recursive Reasoning with Tiny Networks").

Two states of the shape of the sequence: an answer z_H and a latent z_L.  One stack L refines z_L
given the question and z_H, several times, then z_H given z_L; only the last round has a gradient.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from remote.config import TRMConfig
from remote.models.layers import (
    Attention,
    CastedEmbedding,
    CastedLinear,
    RotaryEmbedding,
    SwiGLU,
    rms_norm,
    truncated_normal_,
)
from remote.models.sparse_embedding import SparseEmbedding

State = dict[str, Tensor]  # z_H, z_L: (B, S, D)
HALTING_BIAS = -5.0  # at first, halting looks hopeless


class TRM(nn.Module):
    """One ACT step: state and batch in; new state, logits and halting scores out."""

    def __init__(
        self,
        config: TRMConfig,
        *,
        vocab_size: int,
        seq_len: int,
        num_puzzle_identifiers: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self._prefix = config.puzzle_emb_len
        self._scale = width**0.5
        length = seq_len + self._prefix
        self.embed_tokens = CastedEmbedding(vocab_size, width, 1 / self._scale, dtype)
        self.lm_head = CastedLinear(width, vocab_size)
        self.q_head = CastedLinear(width, 2, bias=True)
        if config.puzzle_emb_ndim:
            self.puzzle_emb = SparseEmbedding(num_puzzle_identifiers, config.puzzle_emb_ndim, dtype)
        if config.pos_encodings == "rope" and not config.mlp_t:
            self.rotary_emb = RotaryEmbedding(width // config.num_heads, length, config.rope_theta)
        elif config.pos_encodings == "learned":
            self.embed_pos = CastedEmbedding(length, width, 1 / self._scale, dtype)
        self.L_level = Stack(config, length)
        for name in ("H_init", "L_init"):
            self.register_buffer(name, truncated_normal_(torch.empty(width), 1.0).to(dtype))
        with torch.no_grad():
            self.q_head.weight.zero_()
            self.q_head.bias.fill_(HALTING_BIAS)

    def initial_state(self) -> State:
        """What a row's state is when it starts on a new example: (D,) each."""
        return {"z_H": self.H_init, "z_L": self.L_init}

    def state_shape(self, batch_size: int, seq_len: int) -> tuple[int, int, int]:
        return batch_size, seq_len + self._prefix, self.config.hidden_size

    def forward(
        self, state: State, inputs: Tensor, puzzle_identifiers: Tensor
    ) -> tuple[State, Tensor, tuple[Tensor, Tensor]]:
        """inputs (B, seq_len), puzzle_identifiers (B,); logits (B, seq_len, vocab_size)."""
        question = self._embed(inputs, puzzle_identifiers)
        cos_sin = self.rotary_emb() if hasattr(self, "rotary_emb") else None
        z_H, z_L = state["z_H"], state["z_L"]
        with torch.no_grad():
            for _ in range(self.config.H_cycles - 1):
                z_H, z_L = self._round(z_H, z_L, question, cos_sin)
        z_H, z_L = self._round(z_H, z_L, question, cos_sin)
        logits = self.lm_head(z_H)[:, self._prefix :]
        halting = self.q_head(z_H[:, 0]).float()
        return {"z_H": z_H.detach(), "z_L": z_L.detach()}, logits, (halting[:, 0], halting[:, 1])

    def _round(
        self, z_H: Tensor, z_L: Tensor, question: Tensor, cos_sin: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        for _ in range(self.config.L_cycles):
            z_L = self.L_level(z_L, z_H + question, cos_sin)
        return self.L_level(z_H, z_L, cos_sin), z_L

    def _embed(self, inputs: Tensor, puzzle_identifiers: Tensor) -> Tensor:
        """The question: (B, S, D), its first `puzzle_emb_len` tokens from the puzzle's vector."""
        embedded = self.embed_tokens(inputs)
        if self.config.puzzle_emb_ndim:
            vector = self.puzzle_emb(puzzle_identifiers)
            missing = self._prefix * self.config.hidden_size - vector.shape[-1]
            tokens = pad(vector, (0, missing)).reshape(len(inputs), self._prefix, -1)
            embedded = torch.cat((tokens, embedded), dim=1)
        if hasattr(self, "embed_pos"):
            positions = torch.arange(embedded.shape[1], device=embedded.device)
            embedded = 0.5**0.5 * (embedded + self.embed_pos(positions))
        return self._scale * embedded


class Stack(nn.Module):
    def __init__(self, config: TRMConfig, length: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(config, length) for _ in range(config.L_layers))

    def forward(
        self, state: Tensor, injection: Tensor, cos_sin: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        hidden = state + injection
        for layer in self.layers:
            hidden = layer(hidden, cos_sin)
        return hidden


class Block(nn.Module):
    """Norm after each residual sum."""

    def __init__(self, config: TRMConfig, length: int) -> None:
        super().__init__()
        self._eps = config.rms_norm_eps
        if config.mlp_t:
            self.mlp_t = SwiGLU(length, config.expansion)
        else:
            self.self_attn = Attention(config.hidden_size, config.num_heads)
        self.mlp = SwiGLU(config.hidden_size, config.expansion)

    def forward(self, x: Tensor, cos_sin: tuple[Tensor, Tensor] | None) -> Tensor:
        if hasattr(self, "mlp_t"):
            across = x.transpose(1, 2)  # (B, D, S)
            x = rms_norm(across + self.mlp_t(across), self._eps).transpose(1, 2)
        else:
            x = rms_norm(x + self.self_attn(x, cos_sin), self._eps)
        return rms_norm(x + self.mlp(x), self._eps)
