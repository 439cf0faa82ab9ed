"""What a batch takes is tried on few rows, by one rank alone, and changes nothing of a training."""

import re
from pathlib import Path

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from remote.config import PretrainConfig, load_config
from remote.dataset.sets import open_splits
from remote.evaluate import main as evaluate
from remote.memory import memory_of_rows, try_answer, try_step
from remote.pretrain import main as pretrain
from remote.ranks import Ranks
from remote.training import Training
from tests.remote.fixture import make_batch, one_thread
from tests.remote.runs import MODEL, quiet, train, words

__all__ = ["one_thread", "quiet"]

CPU = torch.device("cpu")


def test_a_trial_learns_and_leaves_weights_carry_and_step_alone(small_set: Path) -> None:
    config = _config(small_set)
    split = open_splits(config.train_paths, "train")
    training = Training(config, split, Ranks(0, 1, CPU), schedule_steps=1)
    batch = {name: rows.numpy() for name, rows in make_batch(4, split.seq_len).items()}
    before = {name: x.clone() for name, x in training.model.state_dict().items()}
    try_answer(training, batch, CPU)
    assert not training.flat.vectors[0].grad.any()
    try_step(training, batch, CPU)
    assert training.flat.vectors[0].grad.any()
    assert (training.carry, training.step, training.batches_done) == (None, 0, 0)
    after = training.model.state_dict()
    assert all(torch.equal(after[name], x) for name, x in before.items())
    assert memory_of_rows(training, batch, CPU, try_step) == (0, None)  # a CPU does not say


def test_what_does_not_fit_is_said_with_batch_memory_and_the_next_command(
    small_set: Path, tmp_path: Path, capsys
) -> None:
    run = tmp_path / "run"
    train(small_set, run, "max_steps=1", "evaluators=[]")
    what = r"out of memory: 4 rows on this machine with [\d.]+ GiB, .*"
    full = register_module_forward_pre_hook(_is_full)
    try:
        assert evaluate([str(run)]) == 1
        lower = r"Lower global_batch_size, now 4"
        assert re.search(f"^evaluate: {what}{lower}$", capsys.readouterr().err, re.M)
        assert pretrain(words(small_set, run, "load_checkpoint=latest")) == 1
        then = "; load_checkpoint=latest goes on from the last checkpoint"
        assert re.search(f"^pretrain: {what}{lower}{then}$", capsys.readouterr().err, re.M)
    finally:
        full.remove()


def _config(small_set: Path) -> PretrainConfig:
    return load_config([*MODEL, f"data_paths=[{small_set}]", "global_batch_size=4", "device=cpu"])


def _is_full(*_: object) -> None:
    if torch.is_inference_mode_enabled():
        return  # few rows, tried to foretell a run's length
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
