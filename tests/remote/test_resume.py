"""A run that was killed, or goes on elsewhere, is the run that never stopped."""

import signal
from pathlib import Path

import pytest
import torch

from remote.weights import TABLE
from tests.remote.runs import (
    assert_same,
    everything,
    losses,
    metrics,
    of_rank,
    on_ranks,
    quiet,
    ranked,
    train,
    weights,
    words,
)

__all__ = ["quiet"]

# Rows of mixed ages, some of which explore: nothing about the carry is trivial.
SETTINGS = ("arch.halt_max_steps=4", "arch.halt_exploration_prob=0.5", "ema=True", "max_steps=6")
SETTINGS += ("evaluators=[]", "min_eval_interval=99", "keep_last=0")
FEW_ROUNDINGS = {"rtol": 1e-3, "atol": 1e-4}  # atan2 of tiny gradients magnifies the last bit


@pytest.fixture(scope="module")
def start(small_set: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Weights that halt at once: only rows that explore go on, so rows are of all ages."""
    directory = tmp_path_factory.mktemp("start")
    torch.set_num_threads(1)
    train(small_set, directory / "run", *SETTINGS, "max_steps=1")
    eager = weights(directory / "run", 1)
    eager["model.inner.q_head.bias"].fill_(3.0)
    torch.save(eager, directory / "step_0")
    return f"load_checkpoint={directory / 'step_0'}"


@pytest.fixture(scope="module")
def whole(small_set: Path, start: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    train(small_set, run, *SETTINGS, start, "checkpoint_every_n_steps=2")
    ages = [of_rank(run, step)["carry"]["steps"].tolist() for step in (2, 4, 6)]
    assert max(len(set(row)) for row in ages) > 1
    return run


@pytest.mark.parametrize("sign", ["step 3/", "saving "])
def test_killed_with_9_and_resumed_it_is_the_uninterrupted_run_to_the_bit(
    sign: str, start: str, whole: Path, small_set: Path, tmp_path: Path
) -> None:
    """Weights, moments, average, random states, carry and position; in a step or while saving."""
    run = tmp_path / "run"
    every = "checkpoint_every_n_steps=2"
    with ranked(1, words(small_set, run, *SETTINGS, every, start)) as (rank,):
        rank.until(sign, times=2 if sign == "saving " else 1)
        rank.signal(signal.SIGKILL)
        assert rank.end()[0] == -signal.SIGKILL
    train(small_set, run, *SETTINGS, every, "load_checkpoint=latest")
    assert not list(run.glob("*.tmp"))
    assert_same(everything(run, 6), everything(whole, 6))
    by_step = {line["step"]: line["loss"] for line in metrics(run, "step")}
    assert [by_step[step] for step in range(1, 7)] == losses(whole)


def test_two_ranks_that_were_killed_are_the_uninterrupted_ones_to_the_bit(
    start: str, small_set: Path, tmp_path: Path
) -> None:
    """Also what each rank has of its own: rows, part of the puzzle table, random states."""
    run, never = tmp_path / "run", tmp_path / "never"
    settings = (*SETTINGS, "checkpoint_every_n_steps=2")
    with ranked(2, words(small_set, run, *settings, start)) as both:
        both[0].until("step 3/")
        for rank in both:
            rank.signal(signal.SIGKILL)
        for rank in both:  # the second may have ended of the first one's end
            rank.end()
    on_ranks(2, words(small_set, run, *settings, "load_checkpoint=latest"))
    on_ranks(2, words(small_set, never, *settings, start))
    assert_same(everything(run, 6), everything(never, 6))
    assert_same(of_rank(run, 6, 1), of_rank(never, 6, 1))
    assert losses(run) == losses(never)


def test_reports_of_several_steps_go_on_across_a_resume(
    start: str, whole: Path, small_set: Path, tmp_path: Path
) -> None:
    first = (start, "log_interval=4", "checkpoint_every_n_steps=2")
    train(small_set, tmp_path / "first", *SETTINGS, *first)
    more = ("log_interval=4", f"load_checkpoint={tmp_path / 'first' / 'step_2'}")
    train(small_set, tmp_path / "on", *SETTINGS, *more)
    each = losses(whole)
    expected = [sum(each[:4]) / 4, sum(each[4:]) / 2]
    assert losses(tmp_path / "first") == pytest.approx(expected, rel=1e-12)
    assert losses(tmp_path / "on") == losses(tmp_path / "first")


def test_any_number_of_ranks_trains_the_same_and_takes_over_from_any_other(
    start: str, whole: Path, small_set: Path, tmp_path: Path
) -> None:
    """1, 2 and 4 processes, each from the start and from another's second step."""

    def settings(name: str, other: Path | None = None) -> list[str]:
        begin = f"load_checkpoint={other / 'step_2'}" if other else start
        more = (begin, "checkpoint_every_n_steps=2")
        return words(small_set, tmp_path / name, *SETTINGS, *more)

    on_ranks(2, settings("2"))
    on_ranks(2, settings("1 to 2", whole))
    on_ranks(4, settings("4"))
    on_ranks(4, settings("2 to 4", tmp_path / "2"))
    train(small_set, tmp_path / "2 to 1", *SETTINGS, f"load_checkpoint={tmp_path / '2' / 'step_2'}")
    train(small_set, tmp_path / "4 to 1", *SETTINGS, f"load_checkpoint={tmp_path / '4' / 'step_2'}")
    expected, final = losses(whole), weights(whole, 6)
    for name in ("2", "4", "1 to 2", "2 to 4", "2 to 1", "4 to 1"):
        run = tmp_path / name
        found = losses(run)
        assert found == pytest.approx(expected[6 - len(found) :], rel=1e-4), name
        for weight, tensor in weights(run, 6).items():
            torch.testing.assert_close(tensor, final[weight], **FEW_ROUNDINGS)
    for name, own in (("4", [6, 6, 6, 7]), ("2", [12, 13])):
        parts = [of_rank(tmp_path / name, 6, rank)["puzzle_table"] for rank in range(len(own))]
        assert [len(part) for part in parts] == own
    assert final[TABLE].abs().sum() > 0
    carries = [of_rank(tmp_path / "4", 2, rank)["carry"] for rank in range(4)]
    mine = of_rank(whole, 2)["carry"]
    assert torch.cat([carry["steps"] for carry in carries]).tolist() == mine["steps"].tolist()


def test_another_batch_size_goes_on_with_the_weights_and_says_what_starts_anew(
    whole: Path, small_set: Path, tmp_path: Path, caplog
) -> None:
    more = (f"load_checkpoint={whole / 'step_4'}", "global_batch_size=2", "max_steps=5")
    with caplog.at_level("INFO"):
        train(small_set, tmp_path / "on", *SETTINGS, *more)
    assert [line["step"] for line in metrics(tmp_path / "on", "step")] == [5]
    assert "global_batch_size is 2, was 4: iteration 1 of the data starts anew" in caplog.text


def test_a_sigterm_in_an_evaluation_saves_too(small_set: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ("arch.halt_max_steps=16", "epochs=1000", "checkpoint_every_eval=False")
    with ranked(1, words(small_set, run, *settings)) as (rank,):
        rank.until("step ", times=steps_of_an_epoch(small_set))
        rank.signal(signal.SIGTERM)
        status, said = rank.end()
    assert status == 0, said
    assert (run / f"step_{metrics(run, 'stopped')[0]['step']}").is_dir()


def steps_of_an_epoch(data: Path) -> int:
    from remote.dataset.batches import TrainingIteration
    from remote.dataset.layout import open_split

    split = open_split(data, "train")
    return len(TrainingIteration(split, batch_size=4, epochs=1, seed=0, number=1))
