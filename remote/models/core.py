"""What TRM and URM share: how a question is embedded, and how a state is read out."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from remote.arch import Arch
from remote.models.blocks import run
from remote.models.layers import (
    CastedEmbedding,
    CastedLinear,
    RotaryEmbedding,
    Turns,
    cast_once,
    truncated_normal_,
)
from remote.models.sparse_embedding import SparseEmbedding

State = dict[str, Tensor]  # (B, S, D) each
Halting = tuple[Tensor, Tensor]  # scores for halting and for going on, float32 (B,) each
HALTING_BIAS = -5.0  # at first, halting looks hopeless


class Core(nn.Module):
    """One ACT step: state and question in; new state, logits and halting scores out.

    S = puzzle_emb_len + seq_len positions of D = hidden_size.  A subclass gives `STARTS`, which
    maps each state's name to the buffer it starts from, and `think`.
    """

    STARTS: dict[str, str]

    def __init__(
        self,
        config: Arch,
        *,
        vocab_size: int,
        seq_len: int,
        num_puzzle_identifiers: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.dtype = dtype
        self.run = run  # or a compiled form of it
        self.spares_blanks = False  # see `spare_blanks`
        self._prefix = config.puzzle_emb_len
        self._scale = width**0.5
        self.length = seq_len + self._prefix
        self.embed_tokens = CastedEmbedding(vocab_size, width, 1 / self._scale, dtype)
        self.lm_head = CastedLinear(width, vocab_size)
        self.q_head = CastedLinear(width, 2, bias=True)
        if config.puzzle_emb_ndim:
            self.puzzle_emb = SparseEmbedding(num_puzzle_identifiers, config.puzzle_emb_ndim, dtype)
        if config.pos_encodings == "rope" and not config.mlp_t:
            heads = width // config.num_heads
            self.rotary_emb = RotaryEmbedding(heads, self.length, config.rope_theta)
        elif config.pos_encodings == "learned":
            self.embed_pos = CastedEmbedding(self.length, width, 1 / self._scale, dtype)
        for name in self.STARTS.values():
            self.register_buffer(name, truncated_normal_(torch.empty(width), 1.0).to(dtype))
        with torch.no_grad():
            self.q_head.weight.zero_()
            self.q_head.bias.fill_(HALTING_BIAS)

    def initial_state(self) -> State:
        """What a row's state is when it starts on a new example: (D,) each."""
        return {state: getattr(self, buffer) for state, buffer in self.STARTS.items()}

    def state_shape(self, batch_size: int, seq_len: int) -> tuple[int, int, int]:
        return batch_size, seq_len + self._prefix, self.config.hidden_size

    def spare_blanks(self) -> None:
        """Keep and take back nothing for positions without a label: exact, and made for a CPU.

        Four fifths of all positions have none, and a loss asks nothing of them.  Shapes then
        depend on the batch, which neither a compiler nor a GPU likes.
        """
        self.spares_blanks = not (self.config.mlp_t or self.config.conv_mlp)

    def forward(
        self,
        state: State,
        inputs: Tensor,
        puzzle_identifiers: Tensor,
        labelled: Tensor | None = None,
    ) -> tuple[State, Tensor, Halting]:
        """inputs (B, seq_len), puzzle_identifiers (B,); logits (B, seq_len, vocab_size).

        `labelled` bool (B, seq_len): the positions whose logits have a gradient; None: all.
        """
        question = self.question(inputs, puzzle_identifiers)
        if self.spares_blanks and labelled is not None and torch.is_grad_enabled():
            state = self.think(state, question, self._learning_at(labelled))
        else:
            state = self.think(state, question)
        return {name: z.detach() for name, z in state.items()}, *self.answer(state)

    def question(self, inputs: Tensor, puzzle_identifiers: Tensor) -> Tensor:
        """(B, S, D): the first `puzzle_emb_len` tokens are the puzzle's vector.

        The same at every ACT step of an example, so evaluation asks once.
        """
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

    def think(self, state: State, question: Tensor, learning_at: Tensor | None = None) -> State:
        """One ACT step of recursion; only its last part carries gradient.

        `learning_at` bool (B, S): outside of it the gradient of the first state is zero.
        """
        raise NotImplementedError

    def answer(self, state: State) -> tuple[Tensor, Halting]:
        """From the first state: logits (B, seq_len, vocab_size) and halting scores."""
        z = state[next(iter(self.STARTS))]
        halting = self.q_head(z[:, 0]).float()
        return self.lm_head(z)[:, self._prefix :], (halting[:, 0], halting[:, 1])

    def _learning_at(self, labelled: Tensor) -> Tensor:
        """Those that the logits are read from, and the one that the halting scores are."""
        positions = pad(labelled, (self._prefix, 0))
        positions[:, 0] = True
        return positions

    def turns(self) -> Turns | None:
        return self.rotary_emb() if hasattr(self, "rotary_emb") else None

    @contextlib.contextmanager
    def without_gradient(self) -> Iterator[None]:
        """For the rounds before the last."""
        linears = (module for module in self.modules() if isinstance(module, CastedLinear))
        with torch.no_grad(), cast_once(linears, self.dtype):
            yield
