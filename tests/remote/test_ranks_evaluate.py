"""Evaluators of several ranks: one that fails, and votes that a kill must not lose or double."""

import signal
from pathlib import Path

import torch

from tests.remote.runs import (
    assert_same,
    metrics,
    on_ranks,
    quiet,
    ranked,
    shared,
    train,
    words,
)

__all__ = ["quiet"]


def test_where_one_rank_cannot_evaluate_all_go_on(small_set: Path, tmp_path: Path) -> None:
    """Only the first one writes, and cannot; the others neither wait for it nor fail."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "evaluator_ARC_step_1").write_text("a file where the directory belongs")
    on_ranks(2, words(small_set, run, "max_steps=1"))
    (evaluated,) = metrics(run, "eval")
    assert "FileExistsError" in str(evaluated["ARC/failed"])
    assert evaluated["all/count"] == 15
    assert metrics(run, "finished")


def test_votes_that_add_up_are_the_same_across_a_kill(small_set: Path, tmp_path: Path) -> None:
    """It comes after an evaluation, whose votes are in no checkpoint yet, and so are cast again."""
    run, never = tmp_path / "run", tmp_path / "never"
    voting = ("evaluators=[{name: arc@ARC, aggregated_voting: true}]", "epochs=3", "keep_last=0")
    with ranked(1, words(small_set, run, *voting)) as (rank,):
        rank.until("eval at step", times=2)
        rank.signal(signal.SIGKILL)
        rank.end()  # where the kill came late, it was over: nothing may differ then either
    train(small_set, run, *voting, "load_checkpoint=latest")
    train(small_set, never, *voting)
    last = metrics(never, "eval")[-1]["step"]
    assert [line["step"] for line in metrics(run, "eval")] == [
        line["step"] for line in metrics(never, "eval")
    ]
    votes, expected = (shared(where, last)["votes"] for where in (run, never))
    assert any(isinstance(v, torch.Tensor) and len(v) for v in expected["ARC"].values())
    assert_same(votes, expected)
