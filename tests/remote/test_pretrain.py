"""Whole runs of a very small model, in processes of their own where signals or ranks matter."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from remote.pretrain import main as pretrain
from tests.remote.runs import (
    ONE_THREAD,
    losses,
    metrics,
    on_ranks,
    quiet,
    ranked,
    shared,
    train,
    weights,
    words,
)

__all__ = ["quiet"]


def test_a_run_trains_saves_and_evaluates(small_set: Path, tmp_path: Path, capsys) -> None:
    run = tmp_path / "run"
    assert pretrain(words(small_set, run, "ema=True")) == 0
    steps = metrics(run, "step")
    total = steps[0]["total_steps"]
    assert [line["step"] for line in steps] == list(range(1, total + 1))
    for key in ("loss", "lr", "it_per_s", "samples_per_s", "elapsed_s", "train/q_halt_loss"):
        assert key in steps[-1]
    assert [line["lr"] for line in steps[:3]] == [0.005, 0.01, 0.01]
    evals = metrics(run, "eval")
    assert len(evals) == 2
    assert evals[-1]["ARC/pass@1000"] == 0.0
    assert evals[-1]["all/count"] == 15  # all examples, no blanks
    assert (run / f"evaluator_ARC_step_{total}" / "submission.json").exists()
    assert (run / f"step_{total}" / "state.pt").exists()
    assert not list(run.glob("*.tmp"))
    saved = shared(run, total)
    assert saved["ema"].keys() == {n for n in saved["model"] if n in saved["ema"]}
    assert any((saved["ema"][n] != saved["model"][n]).any() for n in saved["ema"])
    assert f"step {total}/{total} loss " in capsys.readouterr().out


def test_the_checkpoint_is_written_before_the_evaluation(small_set: Path, tmp_path: Path) -> None:
    pretrain(words(small_set, tmp_path / "run"))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines]
    interval = ["checkpoint", "evaluating", "eval"]
    assert [e for e in events if e != "step"] == [*interval, *interval, "finished"]


def test_two_processes_train_and_evaluate_as_one_does(small_set: Path, tmp_path: Path) -> None:
    """The same losses, metrics and submission; rows explore, the puzzle table is in two parts."""
    settings = ("arch.halt_exploration_prob=0.5", "epochs=1", "max_steps=3", "ema=True")
    train(small_set, tmp_path / "one", *settings)
    on_ranks(2, words(small_set, tmp_path / "two", *settings))
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    ours, theirs = (metrics(tmp_path / run, "eval")[0] for run in ("two", "one"))
    assert ours["all/count"] == theirs["all/count"]
    for loss in ("all/lm_loss", "all/q_halt_loss"):  # blanks, which only ranks evaluate, add none
        assert ours[loss] == pytest.approx(theirs[loss], rel=1e-4)
    name = "evaluator_ARC_step_3/submission.json"
    assert (tmp_path / "two" / name).exists()


def test_sigterm_saves_and_ends_with_0_and_sigusr1_shows_the_stack(
    small_set: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "remote.pretrain"]
    command += words(small_set, run, "epochs=100000", "eval_interval=100000", "evaluators=[]")
    process = subprocess.Popen(
        command, env=ONE_THREAD, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if line.startswith("step 2/"):
            break
    process.send_signal(signal.SIGUSR1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "most recent call first" in errors
    (saved,) = run.glob("step_*")
    assert metrics(run, "stopped")[0]["step"] == int(saved.name[5:]) >= 2


def test_without_a_puzzle_embedding_it_trains_and_resumes(small_set: Path, tmp_path: Path) -> None:
    bare = ("arch.puzzle_emb_ndim=0", "arch.puzzle_emb_len=0", "evaluators=[]", "epochs=1")
    run = tmp_path / "run"
    assert pretrain(words(small_set, run, *bare, "max_steps=1")) == 0
    more = words(small_set, run, *bare, "max_steps=2", "load_checkpoint=step_1")
    assert pretrain(more) == 0
    assert [line["step"] for line in metrics(run, "step")] == [1, 2]


def test_frozen_weights_stay_and_the_puzzle_table_learns(small_set: Path, tmp_path: Path) -> None:
    settings = ("freeze_weights=True", "max_steps=2", "eval_interval=2", "keep_last=0")
    pretrain(words(small_set, tmp_path / "run", *settings))
    torch.manual_seed(0)
    pretrain(words(small_set, tmp_path / "one", *settings, "max_steps=1"))
    after, before = (weights(tmp_path / r, s) for r, s in (("run", 2), ("one", 1)))
    table = "model.inner.puzzle_emb.weights"
    assert (after[table] != before[table]).any()
    assert all(torch.equal(after[name], before[name]) for name in before if name != table)


def test_a_failing_evaluator_is_reported_and_training_goes_on(
    small_set: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "evaluator_ARC_step_2").write_text("a file where the directory belongs")
    settings = words(small_set, run, "max_steps=4", "epochs=4", "eval_interval=1")
    first = len_of_first_iteration(small_set)
    (run / "evaluator_ARC_step_2").rename(run / f"evaluator_ARC_step_{first}")
    assert pretrain([*settings, f"max_steps={first + 1}"]) == 0
    evals = metrics(run, "eval")
    assert "FileExistsError" in evals[0]["ARC/failed"]
    assert evals[1]["ARC/pass@1"] == 0.0
    assert metrics(run, "step")[-1]["step"] == first + 1


def len_of_first_iteration(data: Path) -> int:
    from remote.dataset.batches import TrainingIteration
    from remote.dataset.layout import open_split

    split = open_split(data, "train")
    return len(TrainingIteration(split, batch_size=4, epochs=1, seed=0, number=1))


def test_epochs_need_not_be_a_multiple_of_the_interval(
    small_set: Path, tmp_path: Path, capsys
) -> None:
    """Two epochs, an evaluation, one more epoch, an evaluation; as was said before."""
    run = tmp_path / "run"
    rhythm = ("epochs=3", "eval_interval=2", "keep_last=0")
    assert pretrain(["--check", *words(small_set, run, *rhythm)]) == 0
    said = capsys.readouterr().out
    train(small_set, run, *rhythm)
    total = metrics(run, "step")[-1]["step"]
    assert f"total steps: {total} in 2 iteration(s)" in said
    assert "evaluations: 2 of" in said
    first, last = (line["step"] for line in metrics(run, "eval"))
    assert last == total
    assert 0 < last - first < first


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("eval_interval=0", "eval_interval=0: expected a number that is at least 1"),
        ("arch.num_heads=3", "must be a multiple of arch.num_heads=3"),
        ("global_batch_size=768", "this trains no step"),
        ("load_checkpoint=latest", "no checkpoint in"),
        ("evaluators=[{name: arc@ACR}]", "no evaluator arc@ACR"),
        ("evaluators=[{name: arc@ARC, pass_Ks: [0]}]", "pass_Ks=[0]: expected a list of whole"),
        ("data_paths=[nowhere]", "no file nowhere/train/dataset.json"),
    ],
)
def test_check_refuses_what_cannot_work(
    word: str, message: str, small_set: Path, tmp_path: Path, capsys
) -> None:
    assert pretrain(["--check", *words(small_set, tmp_path / "run", word)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("place", ["FILE", "FILE/x", "/proc", "/proc/x", "LONG"])
def test_a_place_that_nothing_can_be_written_in_is_refused(
    place: str, small_set: Path, tmp_path: Path, capsys
) -> None:
    """Before a step is made, and nothing is left of the trial."""
    (tmp_path / "file").write_text("")
    run = place.replace("FILE", str(tmp_path / "file")).replace("LONG", f"{tmp_path}/a/{'x' * 300}")
    for more in (["--check"], []):
        assert pretrain([*words(small_set, Path(run)), *more]) == 2
        said = capsys.readouterr()
        assert f"checkpoint_path={run}: nothing can be written there (" in said.err
        assert said.err.count("\n") == 1
        assert "step 1/" not in said.out
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_place_that_one_rank_cannot_write_in_ends_both(small_set: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with ranked(2, words(small_set, tmp_path / "file" / "x")) as both:
        ends = [rank.end() for rank in both]
    assert [status for status, _ in ends] == [2, 2], ends
    assert all("nothing can be written there (NotADirectoryError" in said for _, said in ends)


def test_check_leaves_a_place_as_it_was(small_set: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name in ("there", "new/run"):
        assert pretrain(["--check", *words(small_set, tmp_path / name)]) == 0
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]


def test_check_says_what_a_run_amounts_to(small_set: Path, tmp_path: Path, capsys) -> None:
    run = tmp_path / "run"
    assert pretrain(["--check", *words(small_set, run)]) == 0
    said = capsys.readouterr().out
    assert not run.exists()
    pretrain(words(small_set, run))
    last = metrics(run, "step")[-1]
    assert last["step"] == last["total_steps"]
    assert f"total steps: {last['total_steps']} in 2 iteration(s)" in said
    assert "evaluations: 2 of 4 batches, 2 ACT steps each" in said
    assert "parameters: 13,730 and a puzzle table of 400" in said


def test_a_batch_that_the_processes_cannot_share_is_refused(
    small_set: Path, tmp_path: Path
) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launch += ["--standalone", "--local-addr", "127.0.0.1", "-m", "remote.pretrain"]
    odd = words(small_set, tmp_path / "run", "global_batch_size=5")
    result = subprocess.run(
        [*launch, "--check", *odd], env=ONE_THREAD, capture_output=True, text=True
    )
    assert result.returncode != 0
    assert "global_batch_size 5 is not divisible by 2 processes" in result.stderr
