"""The state of a run, and one step of it."""

import torch
from torch import Tensor

from remote.config import PretrainConfig
from remote.dataset.batches import Batch
from remote.dataset.layout import Split
from remote.models.act import Carry, exploration
from remote.models.build import build_model
from remote.optim.adam_atan2 import adam_atan2
from remote.optim.ema import EMA
from remote.optim.schedule import lr_share
from remote.optim.sign_sgd import SignSGD
from remote.ranks import Ranks

SUMS_OVER_ROWS = ("lm_loss", "q_halt_loss", "q_continue_loss")  # the others: over finished rows


class Training:
    """Model, optimisers, average, carry, and how far they are."""

    def __init__(
        self, config: PretrainConfig, split: Split, ranks: Ranks, *, schedule_steps: int
    ) -> None:
        self._config, self._ranks, self._schedule_steps = config, ranks, schedule_steps
        torch.manual_seed(config.seed + ranks.rank)
        self.model = build_model(config, split, ranks.device)
        self.share_weights()
        self.parameters = list(self.model.parameters())
        self.optimizer = None
        if not config.freeze_weights:
            self.optimizer = adam_atan2(
                self.parameters,
                betas=(config.beta1, config.beta2),
                weight_decay=config.weight_decay,
            )
        self.puzzle_optimizer = None
        if config.arch.puzzle_emb_ndim:
            self.puzzle_optimizer = SignSGD(
                self.model.model.inner.puzzle_emb,
                weight_decay=config.puzzle_emb_weight_decay,
                ranks=ranks,
            )
        self.ema = EMA(self.model, config.ema_rate) if config.ema else None
        self.carry: Carry | None = None
        self.step = 0
        self.iteration = 1  # counts from 1
        self.batches_done = 0  # of this iteration
        self.lr = 0.0
        self._names: list[str] = []
        self._sums: Tensor | None = None
        self._summed_steps = 0

    def train_on(self, batch: Batch) -> None:
        """One optimiser step on this rank's rows of a global batch."""
        self.step += 1
        self.batches_done += 1
        on_device = to_device(batch, self._ranks.device)
        self.model.train()
        if self.carry is None:
            self.carry = self.model.model.initial_carry(on_device)
        self.carry, loss, metrics, _ = self.model(self.carry, on_device, self._least_steps())
        (loss / self._config.global_batch_size).backward()
        self._optimise()
        self._count(metrics)

    def take_metrics(self) -> dict[str, float]:
        """Means since the last call, over all ranks: one wait for the device."""
        sums = self._ranks.sum(self._sums).tolist()
        metrics = dict(zip(self._names, sums, strict=True))
        rows = self._summed_steps * self._config.global_batch_size
        self._sums, self._summed_steps = None, 0
        return means(metrics, rows)

    def share_weights(self) -> None:
        """Every rank has what rank 0 has."""
        self._ranks.broadcast([*self.model.parameters(), *self.model.buffers()])

    def _least_steps(self) -> Tensor:
        batch_size = self._config.global_batch_size
        drawn = exploration(
            self._config.arch, seed=self._config.seed, step=self.step, rows=batch_size
        )
        return torch.from_numpy(self._ranks.shard.of(drawn, batch_size)).to(self._ranks.device)

    def _optimise(self) -> None:
        config = self._config
        share = lr_share(
            self.step,
            warmup_steps=config.lr_warmup_steps,
            total_steps=self._schedule_steps,
            min_ratio=config.lr_min_ratio,
        )
        self.lr = config.lr * share
        if self.puzzle_optimizer is not None:
            self.puzzle_optimizer.step(config.puzzle_emb_lr * share)
        if self.optimizer is not None:
            self._ranks.sum_gradients(self.parameters)
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr
            self.optimizer.step()
        self.model.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update()

    def _count(self, metrics: dict[str, Tensor]) -> None:
        self._names = list(metrics)
        values = torch.stack([value.detach().double() for value in metrics.values()])
        self._sums = values if self._sums is None else self._sums + values
        self._summed_steps += 1


def to_device(batch: Batch, device: torch.device) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array).to(device) for name, array in batch.items()}


def means(sums: dict[str, float], rows: int) -> dict[str, float]:
    """Losses per row; the rest per row that finished, and absent if none did."""
    finished = sums["count"]
    result = {"count": finished}
    for name, total in sums.items():
        if name in SUMS_OVER_ROWS:
            result[name] = total / max(rows, 1)
        elif name != "count" and finished:
            result[name] = total / finished
    return result
