"""Checkpoints as files: whole or not there, the right ones kept, upstream's read and written."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from remote import checkpoint
from remote.checkpoint import CheckpointError, find
from remote.export import main as export
from remote.pretrain import main as pretrain
from remote.weights import TABLE
from tests.remote.runs import (
    MODEL,
    RUN,
    assert_same,
    everything,
    metrics,
    quiet,
    shared,
    train,
    weights,
    words,
)

__all__ = ["quiet"]

NO_EVALUATION = ("evaluators=[]", "min_eval_interval=99")
URM = ("arch=urm", "arch.hidden_size=16", "arch.num_heads=2", "arch.num_layers=1", "arch.loops=2")
URM += ("arch.H_cycles=1", "arch.L_cycles=1")


@pytest.fixture(scope="module")
def three_steps(small_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of steps 1, 2 and 3, its weights averaged."""
    run = tmp_path_factory.mktemp("three") / "run"
    more = ("checkpoint_every_n_steps=1", "keep_last=0", "max_steps=3", "ema=True")
    train(small_set, run, *NO_EVALUATION, *more)
    return run


@pytest.fixture
def run(three_steps: Path, tmp_path: Path) -> Path:
    """The same, to be damaged."""
    return Path(shutil.copytree(three_steps, tmp_path / "run"))


def test_a_checkpoint_says_what_made_it(three_steps: Path, small_set: Path) -> None:
    made_by = json.loads((three_steps / "step_3" / "provenance.json").read_text())
    tokens = made_by["data_files"][str(small_set)]["train/all__inputs.npy"]
    manifest = json.loads((small_set / "manifest.json").read_text())
    assert tokens == manifest["files"]["train/all__inputs.npy"]
    assert len(made_by["code_sha256"]) == len(made_by["data_sha256"]) == 64
    assert set(made_by["git"]) == {"commit", "dirty"}
    assert made_by["optimizer"] == "AdamATan2, in PyTorch"
    assert made_by["torch"] == torch.__version__
    assert json.loads((three_steps / "step_3" / "config.json").read_text())["ema"] is True


def test_the_newest_are_kept_and_the_best(tmp_path: Path) -> None:
    names = ["step_9", "step_10", "step_11", "step_100"]
    first, second, third, fourth = steps = [tmp_path / name for name in names]
    for step, score in zip(steps, (0.1, 0.3, 0.3, None), strict=True):
        step.mkdir()
        if score is not None:
            (step / "score.json").write_text(json.dumps({"metric": "m", "value": score}))
    (tmp_path / "step_5.tmp").mkdir()
    checkpoint.prune(tmp_path, keep_last=0, keep_best=1)
    assert checkpoint.steps(tmp_path) == steps
    checkpoint.prune(tmp_path, keep_last=1, keep_best=2)
    assert checkpoint.steps(tmp_path) == [second, third, fourth]
    checkpoint.prune(tmp_path, keep_last=1, keep_best=1)
    assert checkpoint.steps(tmp_path) == [third, fourth]  # of equally good ones the newest
    assert not first.exists()


def test_of_losses_the_smaller_is_the_better(tmp_path: Path) -> None:
    for number, loss in ((1, 2.5), (2, 0.5), (3, 1.5)):
        step = tmp_path / f"step_{number}"
        step.mkdir()
        score = {"metric": "all/lm_loss", "value": loss}
        (step / "score.json").write_text(json.dumps(score))
    checkpoint.prune(tmp_path, keep_last=1, keep_best=1)
    assert [step.name for step in checkpoint.steps(tmp_path)] == ["step_2", "step_3"]


def test_an_evaluation_rates_the_checkpoint_before_it(small_set: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(small_set, run, "max_steps=1", "best_metric=all/accuracy")
    score = json.loads((run / "step_1" / "score.json").read_text())
    expected = metrics(run, "eval")[0]["all/accuracy"]
    assert score == {"metric": "all/accuracy", "value": expected}


@pytest.mark.parametrize("wanted", ["latest", "3", "step_3", "RUN", "RUN/step_3"])
def test_a_checkpoint_is_found_by_any_of_its_names(three_steps: Path, wanted: str) -> None:
    assert find(wanted.replace("RUN", str(three_steps)), three_steps) == three_steps / "step_3"
    assert find("1", three_steps) == three_steps / "step_1"


def test_what_is_not_there_is_named_with_what_is(three_steps: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"no checkpoint 7, .*there is step_1, step_2, step_3"
    ):
        find("7", three_steps)


def test_of_a_truncated_checkpoint_the_one_before_is_taken_and_said(run: Path, caplog) -> None:
    file = run / "step_3" / "state.pt"
    file.write_bytes(file.read_bytes()[:-100])
    assert find("latest", run) == find("3", run) == run / "step_2"
    assert "state.pt has" in caplog.text
    assert "the one before it is taken" in caplog.text
    (run / "step_2" / "rank_0.pt").unlink()
    assert find(str(run), run) == run / "step_1"


def test_a_changed_byte_and_an_unfinished_checkpoint_are_noticed(run: Path, caplog) -> None:
    file = run / "step_3" / "rank_0.pt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    (run / "step_2" / "files.json").unlink()
    (run / "step_1").rename(run / "step_1.tmp")
    newest = r"the newest is \S+/step_3 \(the content of rank_0.pt is not what was written\)"
    with pytest.raises(CheckpointError, match=rf"every checkpoint in .* is damaged; {newest}"):
        find("latest", run)
    assert "the content of rank_0.pt is not what was written" in caplog.text


def test_a_checkpoint_that_was_being_replaced_is_put_back(
    run: Path, small_set: Path, caplog
) -> None:
    (run / "step_3").rename(run / "step_3.old")
    with caplog.at_level("INFO"):
        more = ("load_checkpoint=latest", "max_steps=4", *NO_EVALUATION, "ema=True")
        train(small_set, run, *more)
    assert "step_3 at step 3" in caplog.text


def test_what_cannot_be_saved_is_an_error_that_leaves_the_earlier_ones(
    run: Path, small_set: Path, capsys
) -> None:
    (run / "step_4.tmp").write_text("a file where the directory belongs")
    before = everything(run, 3)
    more = ("load_checkpoint=latest", "max_steps=4", *NO_EVALUATION, "ema=True")
    assert pretrain(words(small_set, run, *more)) == 1
    said = capsys.readouterr().err
    assert "step_4 was not saved" in said
    assert f"the last checkpoint is {run}/step_3" in said
    assert "what came after it is lost" in said
    assert_same(everything(run, 3), before)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("arch.hidden_size=32", "trained with arch.hidden_size=16"),
        ("arch.mlp_t=True", "trained with arch.mlp_t=False"),
        ("arch.L_layers=2", "trained with arch.L_layers=1"),
        ("arch=urm", "is of another architecture: arch=trm, this run has arch=urm"),
    ],
)
def test_a_checkpoint_of_another_architecture_is_refused(
    word: str, message: str, three_steps: Path, small_set: Path, tmp_path: Path, capsys
) -> None:
    other = words(small_set, tmp_path / "on", f"load_checkpoint={three_steps}", "ema=True")
    other = [*URM, *other[len(MODEL) :]] if word == "arch=urm" else [*other, word]
    for more in ([], ["--check"]):
        assert pretrain([*other, *more]) == 2
        assert message in capsys.readouterr().err


def test_a_setting_that_no_weight_depends_on_is_mentioned(
    three_steps: Path, small_set: Path, tmp_path: Path, caplog
) -> None:
    more = ("max_steps=4", "arch.L_cycles=2", "ema=True", *NO_EVALUATION)
    with caplog.at_level("INFO"):
        train(small_set, tmp_path / "on", f"load_checkpoint={three_steps}", *more)
    assert "arch.L_cycles is 2, the checkpoint had 1" in caplog.text


@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
def test_upstreams_files_are_read_also_with_another_puzzle_table(
    prefix: str, three_steps: Path, small_set: Path, tmp_path: Path, caplog
) -> None:
    flat = {prefix + name: tensor for name, tensor in weights(three_steps, 3).items()}
    table = torch.arange(48.0).reshape(3, 16)
    torch.save(flat | {prefix + TABLE: table}, tmp_path / "step_72385")
    more = (f"load_checkpoint={tmp_path / 'step_72385'}", "lr=0", "puzzle_emb_lr=0", "max_steps=1")
    with caplog.at_level("INFO"):
        train(small_set, tmp_path / "on", *more, *NO_EVALUATION)
    loaded = weights(tmp_path / "on", 1)
    assert torch.equal(loaded[TABLE], table.mean(0).expand(25, 16))
    assert "it has 3 rows, this dataset 25" in caplog.text
    for name, tensor in flat.items():
        if TABLE not in name:
            assert torch.equal(loaded[name.removeprefix(prefix)], tensor)


def test_urm_trains_and_its_files_are_read_whatever_its_convolution_is_called(
    small_set: Path, tmp_path: Path
) -> None:
    settings = (*URM, *RUN, f"data_paths=[{small_set}]", *NO_EVALUATION, "ema=True")
    run = tmp_path / "run"
    assert pretrain([*settings, f"checkpoint_path={run}", "max_steps=2"]) == 0
    assert export([str(run), str(tmp_path / "step_2.pt"), "--raw"]) == 0
    file = torch.load(tmp_path / "step_2.pt", weights_only=True)
    assert file["step"] == 2
    renamed = {n.replace("dwconv", "conv"): t for n, t in file["model_state_dict"].items()}
    torch.save({"step": 2, "model_state_dict": renamed}, tmp_path / "step_3.pt")
    on = tmp_path / "on"
    frozen = (f"load_checkpoint={tmp_path / 'step_3.pt'}", "lr=0", "puzzle_emb_lr=0")
    assert pretrain([*settings, f"checkpoint_path={on}", *frozen, "max_steps=1"]) == 0
    assert_same(weights(on, 1), weights(run, 2))
    assert weights(on, 1)["model.inner.layers.0.mlp.dwconv.weight"].dtype == torch.bfloat16


def test_export_takes_the_averages_and_can_name_them_as_a_compiled_model_does(
    three_steps: Path, tmp_path: Path, capsys
) -> None:
    assert export([str(three_steps / "step_2"), str(tmp_path / "step_2"), "--compiled"]) == 0
    file = torch.load(tmp_path / "step_2", weights_only=True)
    assert all(name.startswith("_orig_mod.model.inner.") for name in file)
    state = shared(three_steps, 2)
    name = "model.inner.lm_head.weight"
    assert torch.equal(file[f"_orig_mod.{name}"], state["ema"][name])
    assert not torch.equal(state["ema"][name], state["model"][name])
    assert file[f"_orig_mod.{TABLE}"].shape == (25, 16)
    assert export([str(tmp_path / "nothing"), str(tmp_path / "out")]) == 2
    assert "no checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"not a checkpoint at all"])
def test_a_file_that_is_no_checkpoint_is_refused(
    content: bytes, small_set: Path, tmp_path: Path, capsys
) -> None:
    (tmp_path / "step_1").write_bytes(content)
    other = words(small_set, tmp_path / "on", f"load_checkpoint={tmp_path / 'step_1'}")
    assert pretrain(other) == 2
    assert "is no checkpoint, or damaged" in capsys.readouterr().err
