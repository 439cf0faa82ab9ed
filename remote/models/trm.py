"""TRM, the tiny recursive model ("Less is More: Recursive Reasoning with Tiny Networks").

Two states of the shape of the sequence: an answer z_H and a latent z_L.  One stack L refines z_L
given the question and z_H, several times, then z_H given z_L; only the last round has a gradient.
"""

import torch
from torch import Tensor, nn

from remote.arch import TRMConfig
from remote.models.blocks import Block, run_learning_at
from remote.models.core import Core, State
from remote.models.layers import Turns


class TRM(Core):
    STARTS = {"z_H": "H_init", "z_L": "L_init"}  # noqa: RUF012, never written

    def __init__(
        self,
        config: TRMConfig,
        *,
        vocab_size: int,
        seq_len: int,
        num_puzzle_identifiers: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(
            config,
            vocab_size=vocab_size,
            seq_len=seq_len,
            num_puzzle_identifiers=num_puzzle_identifiers,
            dtype=dtype,
        )
        self.L_level = Stack(config, self.length)

    def think(self, state: State, question: Tensor, learning_at: Tensor | None = None) -> State:
        z_H, z_L, turns = state["z_H"], state["z_L"], self.turns()
        with self.without_gradient():
            for _ in range(self.config.H_cycles - 1):
                z_H, z_L = self._round(z_H, z_L, question, turns)
        z_H, z_L = self._round(z_H, z_L, question, turns, learning_at)
        return {"z_H": z_H, "z_L": z_L}

    def _round(
        self,
        z_H: Tensor,
        z_L: Tensor,
        question: Tensor,
        turns: Turns | None,
        learning_at: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        layers = self.L_level.layers
        for _ in range(self.config.L_cycles):
            z_L = self.run(layers, z_L, z_H + question, turns)
        if learning_at is None:
            return self.run(layers, z_H, z_L, turns), z_L
        return run_learning_at(layers, z_H, z_L, turns, learning_at), z_L


class Stack(nn.Module):
    """Only a place for the layers, where checkpoints have them."""

    def __init__(self, config: TRMConfig, length: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(config, length) for _ in range(config.L_layers))
