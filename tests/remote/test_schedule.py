"""Beyond upstream's estimate of its steps, batches are counted and weights averaged: no more."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from remote.config import load_config
from remote.dataset.batches import Batch
from remote.dataset.sets import open_splits
from remote.plan import iteration_of
from remote.ranks import Ranks
from remote.training import Training
from tests.remote.fixture import one_thread
from tests.remote.runs import MODEL, RUN

__all__ = ["one_thread"]

SCHEDULE, BATCHES, RATE = 3, 5, 0.9


def trained(small_set: Path, batches: int) -> tuple[Training, Iterator[Batch]]:
    """On so many batches; and those that come next."""
    words = [f"data_paths=[{small_set}]", "ema=True", f"ema_rate={RATE}", "device=cpu"]
    config = load_config([*MODEL, *RUN, *words])
    split = open_splits(config.train_paths, "train")
    ranks = Ranks(0, 1, torch.device("cpu"))
    training = Training(config, split, ranks, schedule_steps=SCHEDULE)
    left = iter(iteration_of(config, split, 1).batches(ranks.shard))
    for batch in islice(left, batches):
        training.train_on(batch)
    return training, left


def weights(training: Training) -> dict[str, Tensor]:
    return {**training.model.state_dict(), **training.carry.state}


def test_later_batches_only_count_and_average(small_set: Path) -> None:
    (within, _), (beyond, _) = trained(small_set, SCHEDULE), trained(small_set, BATCHES)
    assert (beyond.step, beyond.batches_done, beyond.bad_steps()) == (BATCHES, BATCHES, 0)
    for name, tensor in weights(within).items():
        assert torch.equal(weights(beyond)[name], tensor), name
    (own,), (average,), (later,) = within.flat.vectors, within.ema.vectors, beyond.ema.vectors
    left = RATE ** (BATCHES - SCHEDULE)
    assert not torch.allclose(later, average, rtol=1e-4)
    torch.testing.assert_close(later, left * average + (1 - left) * own.detach())
    assert beyond.sums.steps == SCHEDULE
    assert beyond.take_metrics() == within.take_metrics()


def test_after_a_step_that_is_not_finite_nothing_is_averaged_either(small_set: Path) -> None:
    training, left = trained(small_set, SCHEDULE - 1)
    training.carry.state["z_H"].fill_(torch.nan)
    training.carry.halted.fill_(value=False)
    (average,) = [vector.clone() for vector in training.ema.vectors]
    for batch in islice(left, BATCHES - SCHEDULE + 1):
        training.train_on(batch)
    assert training.bad_steps() == BATCHES - SCHEDULE + 1
    assert torch.equal(training.ema.vectors[0], average)
    training.forget_bad_steps(training.bad_steps())
    assert (training.step, training.batches_done) == (SCHEDULE - 1, SCHEDULE - 1)
