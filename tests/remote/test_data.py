"""Runs on several datasets; and goings-on with data that a checkpoint was not trained on."""

from pathlib import Path

import pytest
import torch

from remote.dataset.sets import open_splits
from remote.evaluate import main as evaluate
from remote.pretrain import main as pretrain
from remote.weights import TABLE
from tests.remote.runs import losses, metrics, quiet, shared, train, weights, words

__all__ = ["quiet"]

NO_EVALUATION = ("evaluators=[]", "min_eval_interval=99")


@pytest.fixture(scope="module")
def two_steps(small_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("two") / "run"
    train(small_set, run, "max_steps=2", *NO_EVALUATION)
    return run


def test_a_run_on_two_datasets_trains_evaluates_resumes_and_is_evaluated_again(
    small_set: Path, second_set: Path, tmp_path: Path
) -> None:
    both = f"data_paths=[{small_set},{second_set}]"
    train(small_set, tmp_path / "whole", both)
    last = metrics(tmp_path / "whole", "step")[-1]["step"]
    train(small_set, tmp_path / "run", both, "max_steps=3", *NO_EVALUATION)
    train(small_set, tmp_path / "run", both, "load_checkpoint=latest")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    (*_, ours), (*_, theirs) = (metrics(tmp_path / run, "eval") for run in ("run", "whole"))
    joined = open_splits([small_set, second_set], "test")
    assert ours["all/count"] == theirs["all/count"] == len(joined.inputs)
    table = weights(tmp_path / "whole", last)[TABLE]
    assert len(table) == joined.num_puzzle_identifiers > 25
    assert table[1:25].abs().sum() > 0
    assert table[25:].abs().sum() > 0  # both were trained on
    assert evaluate([str(tmp_path / "whole"), f"checkpoint_path={tmp_path / 'again'}"]) == 0
    name = f"evaluator_ARC_step_{last}/submission.json"
    expected = (tmp_path / "whole" / name).read_bytes()
    assert (tmp_path / "again" / name).read_bytes() == expected


def test_the_other_form_of_a_dataset_is_the_same_data(
    two_steps: Path, small_compact_set: Path, small_set: Path, tmp_path: Path
) -> None:
    more = (f"load_checkpoint={two_steps}", "max_steps=4", *NO_EVALUATION)
    train(small_compact_set, tmp_path / "compact", *more)
    train(small_set, tmp_path / "arrays", *more)
    assert losses(tmp_path / "compact") == losses(tmp_path / "arrays")


def test_data_of_other_puzzles_is_refused_unless_they_are_asked_for(
    two_steps: Path, small_set: Path, other_puzzles: Path, tmp_path: Path, capsys
) -> None:
    """The table has the right size, but its rows would be those of other puzzles."""
    more = words(other_puzzles, tmp_path / "on", f"load_checkpoint={two_steps}", *NO_EVALUATION)
    for command in ([*more, "--check"], more):
        assert pretrain(command) == 2
        said = capsys.readouterr().err
        assert f"{two_steps}/step_2 was trained on other data than {other_puzzles}" in said
        assert f"data_paths=[{small_set}]" in said
    assert evaluate([str(two_steps), f"data_paths=[{other_puzzles}]"]) == 2
    assert "was trained on other data" in capsys.readouterr().err
    frozen = ("new_puzzles=True", "lr=0", "puzzle_emb_lr=0", "max_steps=3")
    assert pretrain([*more, *frozen]) == 0
    found, old = weights(tmp_path / "on", 3)[TABLE], weights(two_steps, 2)[TABLE]
    torch.testing.assert_close(found, old.mean(0).expand_as(old))
    assert shared(tmp_path / "on", 3)["data_digest"] != shared(two_steps, 2)["data_digest"]


def test_without_puzzle_vectors_other_puzzles_are_only_other_data(
    small_set: Path, other_puzzles: Path, tmp_path: Path, caplog
) -> None:
    bare = ("arch.puzzle_emb_ndim=0", "arch.puzzle_emb_len=0", *NO_EVALUATION)
    train(small_set, tmp_path / "run", *bare, "max_steps=1")
    more = (f"load_checkpoint={tmp_path / 'run'}", "max_steps=2")
    with caplog.at_level("INFO"):
        train(other_puzzles, tmp_path / "on", *bare, *more)
    assert "the dataset is another one: iteration 1 of the data starts anew" in caplog.text
