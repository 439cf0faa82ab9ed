"""Adaptive computation time: each row of a batch thinks until it halts, then gets a new example.

A training step is one ACT step of a batch whose rows are at different steps of different examples.
The carry holds what they need: the core's state, and the examples themselves.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from remote.arch import Arch
from remote.dataset.grids import IGNORE_LABEL
from remote.models.core import Core, Halting, State
from remote.models.losses import LOSSES

EXPLORATION = 0xAC7  # sets these draws apart from others of the same seed


@dataclass(slots=True)
class Carry:
    state: State
    steps: Tensor  # int32 (B,): ACT steps taken on the present example
    halted: Tensor  # bool (B,): gets a new example at the next step
    data: State  # inputs, labels, puzzle_identifiers of the present examples

    def split(self, rows: int) -> "list[Carry]":
        """In parts of so many rows, the last one of those that are left."""
        parts = zip(*(tensor.split(rows) for tensor in self._tensors()), strict=True)
        return [self._of(list(part)) for part in parts]

    def joined(self, others: "list[Carry]") -> "Carry":
        """These rows, then those of the others."""
        tensors = zip(*(part._tensors() for part in (self, *others)), strict=True)
        return self._of([torch.cat(parts) for parts in tensors])

    def _tensors(self) -> list[Tensor]:
        return [self.steps, self.halted, *self.state.values(), *self.data.values()]

    def _of(self, tensors: list[Tensor]) -> "Carry":
        """As `_tensors` has them."""
        steps, halted, *rest = tensors
        state, data = rest[: len(self.state)], rest[len(self.state) :]
        return Carry(
            state=dict(zip(self.state, state, strict=True)),
            steps=steps,
            halted=halted,
            data=dict(zip(self.data, data, strict=True)),
        )

    def become(self, new: "Carry", ok: Tensor) -> None:
        """In place, and only if `ok` (bool ()); nothing waits for the device."""
        for own, other in zip(self._tensors(), new._tensors(), strict=True):
            torch.where(ok, other, own, out=own)


def exploration(arch: Arch, *, seed: int, step: int, rows: int) -> np.ndarray:
    """Some rows must reach a random step, so that later steps are learnt too: int32 (rows,).

    The least ACT steps of each row of a global batch.  Drawn from (seed, step) alone, so that
    every number of ranks, and a resumed run, sees the same.
    """
    random = np.random.default_rng([EXPLORATION, seed, step])
    explores = random.random(rows) < arch.halt_exploration_prob
    least = random.integers(2, max(arch.halt_max_steps, 2), size=rows, endpoint=True)
    return np.where(explores, least, 0).astype(np.int32)


class ACT(nn.Module):
    def __init__(self, inner: Core) -> None:
        super().__init__()
        self.inner = inner

    def initial_carry(self, batch: State) -> Carry:
        """Every row halted: all of it is replaced at the first step."""
        inputs = batch["inputs"]
        shape = self.inner.state_shape(*inputs.shape)
        starts = self.inner.initial_state()
        return Carry(
            state={name: row.expand(shape).contiguous() for name, row in starts.items()},
            steps=torch.zeros(len(inputs), dtype=torch.int32, device=inputs.device),
            halted=torch.ones(len(inputs), dtype=torch.bool, device=inputs.device),
            data={name: torch.zeros_like(tensor) for name, tensor in batch.items()},
        )

    def forward(
        self, carry: Carry, batch: State, least_steps: Tensor | None = None
    ) -> tuple[Carry, Tensor, Halting, Tensor | None]:
        """The last value is the target of going on, where the model learns one.

        `least_steps` int32 (B,): see `exploration`; None explores nothing.
        """
        halted = carry.halted
        data = {name: _choose(halted, batch[name], old) for name, old in carry.data.items()}
        fresh = self.inner.initial_state()
        state = {name: _choose(halted, fresh[name], old) for name, old in carry.state.items()}
        steps = torch.where(halted, 0, carry.steps) + 1
        state, logits, scores = self._think(state, data)
        with torch.no_grad():
            now_halted = self._halts(steps, scores, least_steps)
            target = self._target(steps, state, data)
        return Carry(state, steps, now_halted, data), logits, scores, target

    def think_through(self, batch: State) -> tuple[Carry, Tensor, Halting]:
        """All ACT steps on new examples, as evaluation takes them: what `forward` gives in the end.

        The question is embedded once and the answer read out once.
        """
        question = self.inner.question(batch["inputs"], batch["puzzle_identifiers"])
        carry = self.initial_carry(batch)
        state = carry.state
        for _ in range(self.inner.config.halt_max_steps):
            state = self.inner.think(state, question)
        steps = torch.full_like(carry.steps, self.inner.config.halt_max_steps)
        return Carry(state, steps, carry.halted, batch), *self.inner.answer(state)

    def _think(self, state: State, data: State) -> tuple[State, Tensor, Halting]:
        labelled = data["labels"] != IGNORE_LABEL
        return self.inner(state, data["inputs"], data["puzzle_identifiers"], labelled)

    def _halts(self, steps: Tensor, scores: Halting, least_steps: Tensor | None) -> Tensor:
        config = self.inner.config
        last = steps >= config.halt_max_steps
        if not self.training or config.halt_max_steps == 1:
            return last
        halt, go_on = scores
        halts = last | (halt > 0 if config.no_ACT_continue else halt > go_on)
        return halts if least_steps is None else halts & (steps >= least_steps)

    def _target(self, steps: Tensor, state: State, data: State) -> Tensor | None:
        config = self.inner.config
        if config.no_ACT_continue or not self.training:
            return None
        was_training = self.inner.training
        self.inner.eval()  # a look ahead; it must not claim the puzzle embedding's gradient
        halt, go_on = self._think(state, data)[2]
        self.inner.train(was_training)
        last = steps >= config.halt_max_steps
        return torch.sigmoid(torch.where(last, halt, torch.maximum(halt, go_on)))


class ACTLossHead(nn.Module):
    """Sums over rows, so that ranks add up; the caller divides by the global batch size."""

    def __init__(self, model: ACT, loss_type: str) -> None:
        super().__init__()
        self.model = model
        self._cross_entropy = LOSSES[loss_type]
        self.fixed_shapes = False  # also where others would be faster

    def forward(
        self, carry: Carry, batch: State, least_steps: Tensor | None = None
    ) -> tuple[Carry, Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """New carry, loss, metrics (sums, on the device), and outputs for evaluators."""
        return self._judge(*self.model(carry, batch, least_steps))

    def answer(self, batch: State) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Metrics and outputs after all ACT steps; for evaluation, without gradient."""
        # A compiled model takes tensors of inference mode for others, and is compiled once more.
        with torch.inference_mode(mode=False), torch.no_grad():
            batch = {name: tensor.clone() for name, tensor in batch.items()}
            _, _, metrics, outputs = self._judge(*self.model.think_through(batch), None)
        return metrics, outputs

    def _judge(
        self, carry: Carry, logits: Tensor, scores: Halting, target: Tensor | None
    ) -> tuple[Carry, Tensor, dict[str, Tensor], dict[str, Tensor]]:
        halt, go_on = scores
        labels = carry.data["labels"]
        counted = labels != IGNORE_LABEL
        tokens = counted.sum(-1)
        divisor = tokens.clamp_min(1)
        with torch.no_grad():
            predictions = logits.argmax(-1)
            right = counted & (predictions == labels)
            exact = right.sum(-1) == tokens
            done = carry.halted & (tokens > 0)
            metrics = {
                "count": done.sum(),
                "accuracy": torch.where(done, right.sum(-1) / divisor, 0).sum(),
                "exact_accuracy": (done & exact).sum(),
                "q_halt_accuracy": (done & ((halt >= 0) == exact)).sum(),
                "steps": torch.where(done, carry.steps, 0).sum(),
            }
        losses = self._cross_entropy(logits, labels, fixed_shapes=self.fixed_shapes)
        lm_loss = (losses.sum(-1) / divisor).sum()
        # Blanks, which fill the last batch of an evaluation, have no labels and do not count.
        q_loss = torch.where(tokens > 0, _binary(halt, exact.to(halt.dtype)), 0).sum()
        metrics |= {"lm_loss": lm_loss.detach(), "q_halt_loss": q_loss.detach()}
        if target is not None:
            q_continue_loss = torch.where(tokens > 0, _binary(go_on, target), 0).sum()
            metrics["q_continue_loss"] = q_continue_loss.detach()
            q_loss = q_loss + q_continue_loss
        outputs = {"logits": logits, "preds": predictions}
        outputs |= {"q_halt_logits": halt, "q_continue_logits": go_on}
        return carry, lm_loss + 0.5 * q_loss, metrics, outputs


def _choose(halted: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(halted.reshape(-1, *[1] * (old.dim() - 1)), new, old)


def _binary(scores: Tensor, targets: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(scores, targets, reduction="none")
