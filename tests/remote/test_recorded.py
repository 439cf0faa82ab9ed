"""A step that was recorded is the step, whatever the host decides after that."""

import logging
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor

from remote.config import load_config
from remote.dataset.batches import Batch
from remote.dataset.sets import open_splits
from remote.plan import iteration_of
from remote.ranks import Ranks
from remote.recorded import WARM_UPS, Recorder, recorder_for
from remote.training import Training
from tests.remote.fixture import one_thread
from tests.remote.replay import CPURecorder
from tests.remote.runs import MODEL, RUN

__all__ = ["one_thread"]

CPU = torch.device("cpu")
ALONE = Ranks(0, 1, CPU)
STEPS = 8
URM = ["arch.num_layers=1", "arch.loops=3", "arch.hidden_size=16", "arch.num_heads=2"]
URM += ["arch.H_cycles=2", "arch.L_cycles=1"]
SETTINGS = ["lr_warmup_steps=6", "ema=True", "global_batch_size=4"]
SETTINGS += ["arch.halt_exploration_prob=0.5", "epochs=40", "eval_interval=40", "device=cpu"]


class Twins(Ranks):
    """Another rank has the same rows, so nobody needs to be asked."""

    def broadcast(self, tensors: Iterable[Tensor]) -> None: ...

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def gather_rows(self, tensor: Tensor) -> Tensor:
        return torch.cat([tensor] * self.world_size)


def trained(
    small_set: Path,
    recorder: Recorder | None,
    *words: str,
    spoil: Callable[[int, Training], None],
    ranks: Ranks = ALONE,
) -> Training:
    """By whom `recorder` plays them, or, without one, by the same steps one by one."""
    model = URM if "arch=urm" in words else MODEL
    config = load_config([*model, *RUN, *SETTINGS, f"data_paths=[{small_set}]", *words])
    split = open_splits(config.train_paths, "train")
    training = Training(config, split, ranks, schedule_steps=50, recorder=recorder or CPURecorder())
    if recorder is None:
        training._run = training._take_step
    with torch.no_grad():
        training.model.model.inner.q_head.bias.fill_(1)  # all halt at once, unless they explore
    batches: list[Batch] = list(islice(iteration_of(config, split, 1).batches(ranks.shard), STEPS))
    assert len(batches) == STEPS
    for number, batch in enumerate(batches):
        spoil(number, training)
        training.train_on(batch)
    return training


def everything(training: Training) -> dict[str, Tensor]:
    carry = training.carry
    found = {**training.model.state_dict(), **carry.state, **carry.data}
    found |= {"steps": carry.steps, "halted": carry.halted, "sums": training.sums.values}
    if training.optimizer is not None:
        for number, state in enumerate(training.optimizer.state.values()):
            found |= {f"{name}.{number}": tensor for name, tensor in state.items()}
        found |= {f"average of {name}": tensor for name, tensor in training.ema.shadow.items()}
    return found


def nothing(number: int, training: Training) -> None: ...


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("arch.no_ACT_continue=False",),
        ("arch.mlp_t=True", "arch.pos_encodings=learned"),
        ("freeze_weights=True", "ema=False"),
        ("arch.puzzle_emb_ndim=0", "arch.puzzle_emb_len=0", "arch.H_cycles=2"),
        ("arch=urm",),
    ],
    ids=lambda words: " ".join(words) or "trm",
)
def test_steps_that_are_played_change_everything_to_the_same_bits(
    small_set: Path, words: tuple[str, ...]
) -> None:
    """With rates, exploration and batches that change, and rows that halt."""
    recorder = CPURecorder()
    played = trained(small_set, recorder, *words, spoil=nothing)
    assert (recorder.warm_ups, recorder.records) == (WARM_UPS, 1)
    assert recorder.plays == STEPS - WARM_UPS
    taken = trained(small_set, None, *words, spoil=nothing)
    found, expected = everything(played), everything(taken)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    assert played.sums.steps == taken.sums.steps == STEPS
    assert played.bad_steps() == taken.bad_steps() == 0


def test_a_played_step_that_is_not_finite_changes_nothing(small_set: Path) -> None:
    def spoil(number: int, training: Training) -> None:
        if number == STEPS - 2:
            training.kept = {name: tensor.clone() for name, tensor in everything(training).items()}
            training.carry.state["z_H"].fill_(torch.nan)
            training.kept["z_H"] = training.carry.state["z_H"].clone()
            training.carry.halted.fill_(value=False)
            training.kept["halted"] = training.carry.halted.clone()

    training = trained(small_set, CPURecorder(), spoil=spoil)
    assert training.bad_steps() == 2
    for name, tensor in everything(training).items():
        assert tensor.equal(training.kept[name]) or name == "z_H", name


@pytest.mark.parametrize("words", [(), ("arch=urm",)], ids=["trm", "urm"])
def test_no_step_of_ranks_that_share_a_puzzle_table_waits(
    small_set: Path, words: tuple[str, ...]
) -> None:
    recorder = CPURecorder()
    training = trained(small_set, recorder, *words, spoil=nothing, ranks=Twins(1, 2, CPU, object()))
    assert training.model.model.inner.puzzle_emb.is_split
    assert recorder.plays == STEPS - WARM_UPS


def test_metrics_are_of_their_steps_when_they_are_taken_in_between(small_set: Path) -> None:
    taken: list[list[dict[str, float]]] = []
    for recorder in (CPURecorder(), None):
        taken.append(seen := [])

        def take(number: int, training: Training, seen: list = seen) -> None:
            if number in (2, 5, 7):
                seen.append(training.take_metrics())

        trained(small_set, recorder, spoil=take)
    assert taken[0] == taken[1]
    assert len(taken[0]) == 3


@pytest.mark.parametrize("breaks_at", ["log", "sort", "atan2"])
def test_what_cannot_be_recorded_is_said_once_and_training_goes_on_as_if_never_tried(
    small_set: Path, caplog: pytest.LogCaptureFixture, breaks_at: str
) -> None:
    """Wherever in a step it breaks: in its loss, its puzzle vectors, its optimiser."""
    found = everything(trained(small_set, CPURecorder(breaks_at), spoil=nothing))
    said = f"cuda_graph: off, for a step could not be recorded: {breaks_at} cannot be recorded"
    assert caplog.text.count(said) == 1
    expected = everything(trained(small_set, None, spoil=nothing))
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_the_recorder_of_these_tests_records_as_a_gpu_does() -> None:
    """What the host decides is decided, nothing has happened yet, and nothing may wait."""
    x, y, factor = torch.ones(3), torch.zeros(3), 2.0

    def step() -> Tensor:
        y.add_(x * factor)
        return y.sum()

    play, total = CPURecorder().record(step)
    assert not y.any()
    factor = 100.0
    x.fill_(5)
    play()
    play()
    assert y.tolist() == [20.0] * 3
    assert total.item() == 60
    for waits in (lambda: x.sum().item(), lambda: x[x > 0], lambda: x.nonzero()):
        with pytest.raises(RuntimeError, match="waits for the device"):
            CPURecorder().record(waits)


def test_where_steps_are_not_recorded_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    gpu = torch.device("cuda", 0)
    wanted, not_wanted = load_config(["cuda_graph=True"]), load_config([])
    assert recorder_for(not_wanted, Ranks(0, 1, gpu)) is None
    assert not caplog.text
    assert recorder_for(wanted, Ranks(0, 1, CPU)) is None
    assert "cuda_graph: off on a CPU" in caplog.text
    assert recorder_for(wanted, Ranks(0, 4, gpu)) is None
    assert "one process, not for 4" in caplog.text
