"""What a step takes is tried on few rows, by one rank alone, and changes nothing of a training."""

from pathlib import Path

import torch

from remote.config import load_config
from remote.dataset.sets import open_splits
from remote.memory import _try_step, memory_of_rows
from remote.ranks import Ranks
from remote.training import Training
from tests.remote.fixture import make_batch, one_thread
from tests.remote.runs import MODEL

__all__ = ["one_thread"]

CPU = torch.device("cpu")


def test_a_trial_learns_and_leaves_weights_carry_and_step_alone(small_set: Path) -> None:
    words = [*MODEL, f"data_paths=[{small_set}]", "global_batch_size=4", "device=cpu"]
    config = load_config(words)
    split = open_splits(config.train_paths, "train")
    training = Training(config, split, Ranks(0, 1, CPU), schedule_steps=1)
    batch = {name: rows.numpy() for name, rows in make_batch(4, split.seq_len).items()}
    before = {name: x.clone() for name, x in training.model.state_dict().items()}
    _try_step(training, batch, CPU)
    assert training.flat.vectors[0].grad.any()
    assert (training.carry, training.step, training.batches_done) == (None, 0, 0)
    after = training.model.state_dict()
    assert all(torch.equal(after[name], x) for name, x in before.items())
    assert memory_of_rows(training, batch, CPU) == (0, None)  # a CPU does not say
