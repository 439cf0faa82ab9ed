"""A checkpoint's evaluation is that of the run which wrote it, whoever evaluates."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from remote.config import ARRAYS
from remote.evaluate import main as evaluate
from remote.pretrain import main as pretrain

RUN = ["arch=trm", "arch.hidden_size=16", "arch.num_heads=2", "arch.L_layers=1"]
RUN += ["arch.H_cycles=1", "arch.L_cycles=1", "arch.halt_max_steps=2", "arch.puzzle_emb_len=1"]
RUN += ["global_batch_size=4", "epochs=2", "lr=1e-2", "lr_warmup_steps=2", "max_steps=3"]
RUN += ["ema=True", "ema_rate=0.5"]
QUIET = os.environ | {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
SUBMISSION = "evaluator_ARC_step_3/submission.json"


@pytest.fixture(scope="module")
def run(small_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps, evaluated at the end."""
    place = tmp_path_factory.mktemp("evaluated") / "run"
    before = os.environ.get("WANDB_MODE")
    os.environ["WANDB_MODE"] = "disabled"
    try:
        words = [*RUN, f"data_paths=[{small_set}]", f"checkpoint_path={place}"]
        assert pretrain(words) == 0
    finally:
        os.environ.pop("WANDB_MODE")
        if before is not None:
            os.environ["WANDB_MODE"] = before
    return place


def own_evaluation(run: Path) -> dict:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return next(line for line in lines if line["event"] == "eval")


def evaluation_in(place: Path, step: int = 3) -> dict:
    return json.loads((place / f"evaluation_step_{step}.json").read_text())


def assert_same(found: dict, expected: dict) -> None:
    names = [name for name in found if name.startswith("ARC/")]
    assert {"ARC/pass@1", "ARC/pass@1000"} <= set(names)
    for name in (*names, "all/count", "all/accuracy", "all/lm_loss"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5), name


@pytest.mark.parametrize("name", [".", "step_3"])
def test_a_checkpoint_gives_what_its_run_gave(name: str, run: Path, tmp_path: Path, capsys) -> None:
    """From the averaged weights, with the settings that the checkpoint has."""
    assert evaluate([str(run / name), f"checkpoint_path={tmp_path}"]) == 0
    assert_same(evaluation_in(tmp_path), own_evaluation(run))
    assert (tmp_path / SUBMISSION).read_bytes() == (run / SUBMISSION).read_bytes()
    assert "ARC/pass@2 " in capsys.readouterr().out


def test_a_dataset_and_a_run_of_any_name_are_found_again(
    small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    data, place = tmp_path / "ärger, don't [1]", tmp_path / "run"
    data.symlink_to(small_set)
    words = [*RUN, f'data_paths=["{data}"]', "run_name=don't", f"checkpoint_path={place}"]
    assert pretrain(words) == 0
    assert evaluate([str(place), f"checkpoint_path={tmp_path / 'again'}"]) == 0
    assert_same(evaluation_in(tmp_path / "again"), own_evaluation(place))


def test_every_array_that_may_be_asked_for_is_written(run: Path, tmp_path: Path) -> None:
    wanted = f"eval_save_outputs=[{','.join(ARRAYS)}]"
    assert evaluate([str(run), f"checkpoint_path={tmp_path}", wanted]) == 0
    with np.load(tmp_path / "eval_outputs" / "step_3_rank_0.npz") as written:
        assert {name: len(written[name]) for name in written} == dict.fromkeys(ARRAYS, 15)


def test_it_writes_beside_the_checkpoint_wherever_that_was_moved(run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "step_3"
    moved.mkdir()
    for path in (run / "step_3").iterdir():
        (moved / path.name).write_bytes(path.read_bytes())
    assert evaluate([str(moved)]) == 0
    assert (tmp_path / SUBMISSION).read_bytes() == (run / SUBMISSION).read_bytes()


@pytest.mark.parametrize("ranks", [2, 3])
def test_any_number_of_ranks_gives_the_same(ranks: int, run: Path, tmp_path: Path) -> None:
    """Also one that does not divide the batch of the training."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command += ["--standalone", "--local-addr", "127.0.0.1", "-m", "remote.evaluate"]
    words = [str(run), f"checkpoint_path={tmp_path}"]
    done = subprocess.run([*command, *words], env=QUIET, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert_same(evaluation_in(tmp_path), own_evaluation(run))
    assert (tmp_path / SUBMISSION).read_bytes() == (run / SUBMISSION).read_bytes()


def test_a_file_of_upstreams_is_evaluated_with_the_settings_given(
    run: Path, tmp_path: Path, small_set: Path
) -> None:
    state = torch.load(run / "step_3" / "state.pt", weights_only=True)
    flat = {f"_orig_mod.{name}": tensor for name, tensor in state["model"].items()}
    torch.save(flat, tmp_path / "step_72385")
    assert evaluate([str(tmp_path / "step_72385"), *RUN[:9], f"data_paths=[{small_set}]"]) == 0
    assert evaluation_in(tmp_path, 72385)["ARC/pass@1"] == 0.0
    assert (tmp_path / "evaluator_ARC_step_72385" / "submission.json").exists()


def test_a_place_that_nothing_can_be_written_in_is_refused_before_it_begins(
    run: Path, tmp_path: Path, capsys
) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "x"):
        assert evaluate([str(run), f"checkpoint_path={place}"]) == 2
        said = capsys.readouterr()
        assert f"checkpoint_path={place}: nothing can be written there (" in said.err
        assert "ARC/" not in said.out
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_evaluator_that_fails_is_named_and_ends_with_1(run: Path, tmp_path: Path) -> None:
    (tmp_path / "evaluator_ARC_step_3").write_text("a file where the directory belongs")
    assert evaluate([str(run), f"checkpoint_path={tmp_path}"]) == 1
    found = evaluation_in(tmp_path)
    assert "FileExistsError" in found["ARC/failed"]
    assert found["all/count"] == 15


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "no checkpoint nowhere"),
        (["RUN", "data_paths=[nowhere]"], "no file nowhere"),
        (["RUN", "evaluators=[{name: arc@ACR}]"], "no evaluator arc@ACR"),
        (["RUN", "evaluater=[]"], "no setting evaluater; the nearest is evaluators"),
    ],
)
def test_what_is_not_there_is_named(words: list[str], message: str, run: Path, capsys) -> None:
    assert evaluate([str(run) if word == "RUN" else word for word in words]) == 2
    assert message in capsys.readouterr().err
