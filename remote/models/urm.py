"""URM, the universal reasoning model: one state, and layers that mix neighbours in their MLP.

Every cycle adds the question to the state and applies all layers.  The last L_cycles of
H_cycles * L_cycles carry gradient.
"""

import torch
from torch import Tensor, nn

from remote.arch import URMConfig
from remote.models.blocks import Block
from remote.models.core import Core, State


class URM(Core):
    STARTS = {"hidden": "init_hidden"}  # noqa: RUF012, never written

    def __init__(
        self,
        config: URMConfig,
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
        self.layers = nn.ModuleList(Block(config, self.length) for _ in range(config.num_layers))

    def think(self, state: State, question: Tensor, learning_at: Tensor | None = None) -> State:
        hidden, turns = state["hidden"], self.turns()
        with self.without_gradient():
            still = question.detach()
            for _ in range((self.config.H_cycles - 1) * self.config.L_cycles):
                hidden = self.run(self.layers, hidden, still, turns)
        for _ in range(self.config.L_cycles):
            hidden = self.run(self.layers, hidden, question, turns)
        return {"hidden": hidden}
