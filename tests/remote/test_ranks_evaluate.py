"""Evaluators of several ranks: one that fails, and votes that a kill must not lose or double."""

import os
import signal
from pathlib import Path
from typing import Any

import torch

from remote.evaluators import EVALUATORS
from remote.evaluators.arc import ARC
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


class FailsOnTheSecondRank(ARC):
    def update(self, **answers: Any) -> None:
        if os.environ["RANK"] == "1":
            raise RuntimeError("no such colour")
        super().update(**answers)


def with_one_that_fails() -> None:
    EVALUATORS["fails@TEST"] = FailsOnTheSecondRank


def test_one_that_fails_on_another_rank_than_the_first_is_named(
    small_set: Path, tmp_path: Path
) -> None:
    """Both ranks gather, train on and evaluate again; the one beside it gives its result."""
    run = tmp_path / "run"
    both = "evaluators=[{name: fails@TEST}, {name: arc@ARC}]"
    on_ranks(2, words(small_set, run, both), first=with_one_that_fails)
    evaluated = metrics(run, "eval")
    assert len(evaluated) == 2
    assert {line["ARC/failed"] for line in evaluated} == {"RuntimeError: no such colour"}
    assert all(line["ARC/pass@1"] >= 0 for line in evaluated)
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
