"""What a batch takes is tried on few rows, by one rank alone, and changes nothing of a training."""

import gc
import re
import weakref
from pathlib import Path

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from remote.config import PretrainConfig, load_config
from remote.dataset.sets import open_splits
from remote.evaluate import main as evaluate
from remote.memory import memory_of_rows, out_of_memory, try_answer, try_step
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


def test_what_did_fit_of_a_batch_is_let_go_before_anything_is_measured(small_set: Path) -> None:
    """Or it would count as taken before the batch, and leave no room for fewer rows."""
    config = _config(small_set)
    split = open_splits(config.train_paths, "train")
    ranks = Ranks(0, 1, CPU)
    training = Training(config, split, ranks, schedule_steps=1)
    batch = {name: rows.numpy() for name, rows in make_batch(4, split.seq_len).items()}
    held: list[weakref.ref] = []

    def fills(_layer: torch.nn.Module, _given: object, result: object) -> None:
        if isinstance(result, torch.Tensor) and result.grad_fn is not None:
            held.append(weakref.ref(result))

    def is_full(layer: torch.nn.Module, _given: object) -> None:
        if layer is training.model.model.inner.lm_head:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    hooks = register_module_forward_hook(fills), register_module_forward_pre_hook(is_full)
    try:
        training.train_on(batch)
    except torch.OutOfMemoryError as error:
        assert sum(each() is not None for each in held) >= 3
        out_of_memory(error, training, batch, ranks, try_step)
        gc.collect()
        assert not [each for each in held if each() is not None]
    else:
        raise AssertionError("it was never full")
    finally:
        for hook in hooks:
            hook.remove()


def _config(small_set: Path) -> PretrainConfig:
    return load_config([*MODEL, f"data_paths=[{small_set}]", "global_batch_size=4", "device=cpu"])


def _is_full(*_: object) -> None:
    if torch.is_inference_mode_enabled():
        return  # few rows, tried to foretell a run's length
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
