"""A step whose loss, gradient or result is no number: it never was, and the run can go on."""

from pathlib import Path

import pytest
import torch

from remote.pretrain import main as pretrain
from tests.remote.runs import (
    assert_same,
    everything,
    losses,
    metrics,
    of_rank,
    on_ranks,
    quiet,
    ranked,
    shared,
    train,
    words,
)

__all__ = ["quiet"]

NO_EVALUATION = ("evaluators=[]", "min_eval_interval=99")
HUGE = ("lr=1e30", "ema=True", "arch.halt_max_steps=4", *NO_EVALUATION)
BAD = 2  # the step whose loss, after one of that rate, is not finite
SELDOM = "log_interval=100"


@pytest.fixture(scope="module")
def good(small_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the same settings that ends before its loss goes wrong."""
    run = tmp_path_factory.mktemp("good") / "run"
    torch.set_num_threads(1)
    train(small_set, run, *HUGE, f"max_steps={BAD - 1}")
    return run


@pytest.mark.parametrize(
    "rhythm",
    [
        ("log_interval=5",),
        (SELDOM, "max_steps=4"),
        (SELDOM, "checkpoint_every_n_steps=3"),
        (SELDOM, "checkpoint_every_n_steps=1"),
        (SELDOM, "eval_interval=1"),
        (SELDOM, "eval_interval=1", "checkpoint_every_eval=False"),
    ],
    ids=["report", "end", "save", "just after a save", "evaluation", "next iteration"],
)
def test_whenever_it_is_found_the_newest_checkpoint_is_the_state_before_it(
    rhythm: tuple[str, ...], good: Path, small_set: Path, tmp_path: Path, capsys
) -> None:
    """Weights, average, moments, carry, random states, position and metrics, to the bit."""
    run = tmp_path / "run"
    assert pretrain(words(small_set, run, *HUGE, *rhythm)) == 1
    assert f"{run}/step_{BAD - 1} is the state before it" in capsys.readouterr().err
    assert [line["step"] for line in metrics(run, "not finite")] == [BAD]
    assert [path.name for path in run.glob("step_*")] == [f"step_{BAD - 1}"]
    saved, expected = everything(run, BAD - 1), everything(good, BAD - 1)
    sums, saved[1]["sums"] = saved[1]["sums"], expected[1]["sums"]
    assert sums["steps"] == BAD - 1
    assert sums["values"].isfinite().all()
    assert_same(saved, expected)


def test_after_a_bad_first_step_a_run_goes_on_from_what_it_began_with(
    small_set: Path, tmp_path: Path
) -> None:
    """Its loss is finite, the weights that it makes are not."""
    run, never = tmp_path / "run", tmp_path / "never"
    more = ("max_steps=3", "ema=True", *NO_EVALUATION)
    assert pretrain(words(small_set, run, *more, "lr=1e40")) == 1
    assert [line["step"] for line in metrics(run, "not finite")] == [1]
    train(small_set, run, *more, "load_checkpoint=latest")
    train(small_set, never, *more)
    assert_same(everything(run, 3), everything(never, 3))
    assert losses(run) == losses(never)


def test_all_ranks_stop_at_one_step_and_save_the_one_before(
    small_set: Path, tmp_path: Path
) -> None:
    broken, fine = tmp_path / "broken", tmp_path / "fine"
    with ranked(2, words(small_set, broken, *HUGE, SELDOM, "checkpoint_every_n_steps=3")) as both:
        ends = [rank.end() for rank in both]
    assert [status for status, _ in ends] == [1, 1], ends
    assert all(f"step {BAD} is not finite" in said for _, said in ends)
    on_ranks(2, words(small_set, fine, *HUGE, f"max_steps={BAD - 1}"))
    assert [path.name for path in broken.glob("step_*")] == [f"step_{BAD - 1}"]
    for rank in range(2):
        ours, theirs = (of_rank(run, BAD - 1, rank) for run in (broken, fine))
        ours["sums"] = theirs["sums"] = None
        assert_same(ours, theirs)
    for name in ("model", "ema", "optimizer"):
        assert_same(shared(broken, BAD - 1)[name], shared(fine, BAD - 1)[name])
