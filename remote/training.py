"""The state of a run, and one step of it.

Nothing in a step waits for the device: metrics add up there, and a step whose loss or gradient is
not finite changes nothing, nor does any after it.  The host learns of both at the next report.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from remote.config import PretrainConfig
from remote.dataset.batches import Batch
from remote.dataset.sets import files_of, fingerprint
from remote.dataset.split import Split
from remote.machine import keep_freed_memory
from remote.models.act import Carry, exploration
from remote.models.build import build_model
from remote.models.compiled import compile_model, speed_up_on_cpu
from remote.optim.adam_atan2 import MOMENTS, adam_atan2
from remote.optim.ema import EMA
from remote.optim.flat import Flat
from remote.optim.schedule import lr_share
from remote.optim.sign_sgd import SignSGD
from remote.ranks import Ranks
from remote.recorded import Given, Recorded, Recorder

ROWS_IN_CACHE = 8  # of a CPU: more are slower, fewer too
SUMS_OVER_ROWS = ("lm_loss", "q_halt_loss", "q_continue_loss")  # the others: over finished rows


@dataclass(slots=True)
class Sums:
    """Metrics since the last report: float64 on the device, of this rank's rows."""

    names: list[str]
    values: Tensor
    steps: int


class Training:
    """Model, optimisers, average, carry, and how far they are."""

    def __init__(
        self,
        config: PretrainConfig,
        split: Split,
        ranks: Ranks,
        *,
        schedule_steps: int,
        recorder: Recorder | None = None,
    ) -> None:
        self._config, self._ranks, self._schedule_steps = config, ranks, schedule_steps
        if ranks.device.type == "cpu":
            keep_freed_memory()
        self.data_digest = fingerprint(config.train_paths)
        self.data_files = files_of(config.train_paths)
        torch.manual_seed(config.seed + ranks.rank)
        self.model = build_model(config, split, ranks.device, ranks)
        self.share_weights()
        self.flat = Flat(self.model)
        self.optimizer, self.optimizer_kind = None, "none: the weights are frozen"
        if config.freeze_weights:
            self.model.requires_grad_(requires_grad=False)
        else:
            self.optimizer, self.optimizer_kind = adam_atan2(
                self.flat.vectors,
                betas=(config.beta1, config.beta2),
                weight_decay=config.weight_decay,
                recorded=recorder is not None,
            )
        self.puzzle_optimizer = None
        if config.arch.puzzle_emb_ndim:
            self.puzzle_optimizer = SignSGD(
                self.model.model.inner.puzzle_emb,
                weight_decay=config.puzzle_emb_weight_decay,
                ranks=ranks,
            )
        self.ema = EMA(self.flat, config.ema_rate) if config.ema else None
        compiled = compile_model(self.model, config, ranks.device)
        self._run: Callable[[Given], Tensor] = self._take_step
        self._rates_on_device = recorder is not None
        if recorder is not None:
            self.model.fixed_shapes = True
            self._run = Recorded(self._take_step, recorder)
        elif ranks.device.type == "cpu" and not compiled:
            self.model.model.inner.spare_blanks()
            speed_up_on_cpu(self.model, config)
        self.carry: Carry | None = None
        self.step = 0
        self.iteration = 1  # counts from 1
        self.batches_done = 0  # of this iteration
        self.sums: Sums | None = None
        self._ok = torch.ones((), dtype=torch.bool, device=ranks.device)
        self._good_steps = torch.zeros((), dtype=torch.int64, device=ranks.device)
        self._steps_asked = 0  # of which those are the good ones

    @property
    def lr(self) -> float:
        return self._config.lr * self._lr_share()

    def train_on(self, batch: Batch) -> None:
        """One optimiser step on this rank's rows of a global batch, within the schedule."""
        self.step += 1
        self.batches_done += 1
        self._steps_asked += 1
        if self.step > self._schedule_steps:
            return self._average_on()
        given = self._given(batch)
        self.model.train()
        if self.carry is None:
            self.carry = self.model.model.initial_carry(given.batch)
        self._count(self._run(given))

    @torch.no_grad()
    def _average_on(self) -> None:
        """Beyond the schedule a batch is counted and the weights averaged, as upstream does."""
        averages = self.ema.vectors if self.ema else []
        before = [tensor.clone() for tensor in averages]
        if self.ema is not None:
            self.ema.update()
        self._undo_unless_ok(averages, before)
        self._good_steps += self._ok

    def take_metrics(self) -> dict[str, float]:
        """Means since the last call, over all ranks: one wait for the device."""
        sums, self.sums = self.sums, None
        totals = dict(zip(sums.names, self._ranks.sum(sums.values).tolist(), strict=True))
        return means(totals, sums.steps * self._config.global_batch_size)

    def bad_steps(self) -> int:
        """Steps, the last ones, that changed nothing since one was not finite; waits."""
        return self._steps_asked - int(self._good_steps)

    def forget_bad_steps(self, count: int) -> None:
        """Position and metrics are again those of the last good step, as all else still is."""
        self.step -= count
        self.batches_done -= count
        self._steps_asked -= count
        if self.sums is not None:
            self.sums.steps -= count
            if self.sums.steps <= 0:
                self.sums = None

    def share_weights(self) -> None:
        """Every rank has what rank 0 has, but for a puzzle table that is split over them."""
        table = getattr(self.model.model.inner, "puzzle_emb", None)
        split = table.weights if table is not None and table.is_split else None
        shared = [*self.model.parameters(), *self.model.buffers()]
        self._ranks.broadcast(tensor for tensor in shared if tensor is not split)

    def _given(self, batch: Batch) -> Given:
        device, share = self._ranks.device, self._lr_share()
        rates = [rate * share for rate in (self._config.lr, self._config.puzzle_emb_lr)]
        if self._rates_on_device:
            rates = [torch.full((), rate, dtype=torch.float64, device=device) for rate in rates]
        return Given(batch_to_device(batch, device), self._least_steps(), *rates)

    def _take_step(self, given: Given) -> Tensor:
        """Whatever of a step is done on the device, and in place; metrics, as `Sums` has them."""
        if self.puzzle_optimizer is not None:
            self.puzzle_optimizer.forget()
        carry, loss, metrics = self._forward_and_backward(self.carry, given)
        self._optimise(loss, given)
        with torch.no_grad():
            self.carry.become(carry, self._ok)
            self._metrics = list(metrics)
            values = torch.stack([value.detach().double() for value in metrics.values()])
            return torch.where(self._ok, values, 0)

    def _forward_and_backward(
        self, carry: Carry, given: Given
    ) -> tuple[Carry, Tensor, dict[str, Tensor]]:
        """Everything adds up over rows, so that on a CPU a few at a time can stay in its cache."""
        each = ROWS_IN_CACHE if self._ranks.device.type == "cpu" else len(carry.steps)
        parts = zip(
            carry.split(each),
            *(rows.split(each) for rows in given.batch.values()),
            given.least_steps.split(each),
            strict=True,
        )
        carries, losses, counted = [], [], []
        for part, *rows, least_steps in parts:
            own = dict(zip(given.batch, rows, strict=True))
            new, loss, metrics, _ = self.model(part, own, least_steps)
            (loss / self._config.global_batch_size).backward()
            carries.append(new)
            losses.append(loss.detach())
            counted.append(metrics)
        totals = {name: sum(part[name] for part in counted) for name in counted[0]}
        return carries[0].joined(carries[1:]), sum(losses), totals

    def _least_steps(self) -> Tensor:
        batch_size = self._config.global_batch_size
        drawn = exploration(
            self._config.arch, seed=self._config.seed, step=self.step, rows=batch_size
        )
        return to_device(self._ranks.shard.of(drawn, batch_size), self._ranks.device)

    def _lr_share(self) -> float:
        return lr_share(
            self.step,
            warmup_steps=self._config.lr_warmup_steps,
            total_steps=self._schedule_steps,
            min_ratio=self._config.lr_min_ratio,
        )

    @torch.no_grad()
    def _optimise(self, loss: Tensor, given: Given) -> None:
        gathered = self.puzzle_optimizer.gather() if self.puzzle_optimizer else None
        self.flat.sum_over(self._ranks, loss)
        self._ok &= self.flat.all_finite()
        if gathered is not None:
            self._ok &= gathered[1].sum().isfinite()
        if self.optimizer is not None:
            changed = self._changed()
            before = [tensor.clone() for tensor in changed]
            for group in self.optimizer.param_groups:
                group["lr"] = given.lr
            self.optimizer.step()
            if self.ema is not None:
                self.ema.update()
            # A finite gradient can make weights, or squares of it, that are not.
            self._ok &= torch.stack([tensor.sum().float() for tensor in changed]).isfinite().all()
            self._undo_unless_ok(changed, before)
        if gathered is not None:
            self.puzzle_optimizer.step(given.puzzle_emb_lr, gathered, self._ok)
        self.flat.zero_grad()
        self._good_steps += self._ok

    def _undo_unless_ok(self, changed: list[Tensor], before: list[Tensor]) -> None:
        for now, then in zip(changed, before, strict=True):
            now.copy_(torch.where(self._ok, now, then))

    def _changed(self) -> list[Tensor]:
        """Everything that an optimiser step writes, but for the puzzle table."""
        states = [self.optimizer.state[vector] for vector in self.flat.vectors]
        moments = [state[name] for state in states for name in (*MOMENTS, "step")]
        return [
            *(v.data for v in self.flat.vectors),
            *moments,
            *(self.ema.vectors if self.ema else []),
        ]

    @torch.no_grad()
    def _count(self, values: Tensor) -> None:
        if self.sums is None:
            self.sums = Sums(self._metrics, values.clone(), 1)
        else:
            self.sums.values += values
            self.sums.steps += 1


def batch_to_device(batch: Batch, device: torch.device) -> dict[str, Tensor]:
    return {name: to_device(array, device) for name, array in batch.items()}


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Without waiting for the device, where that is another one."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


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
