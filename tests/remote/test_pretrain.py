"""Whole runs of a very small model, in processes of their own where signals or ranks matter."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from remote.pretrain import main as pretrain

MODEL = ["arch=trm", "arch.hidden_size=16", "arch.num_heads=2", "arch.L_layers=1"]
MODEL += ["arch.H_cycles=1", "arch.L_cycles=1", "arch.halt_max_steps=2", "arch.puzzle_emb_len=1"]
RUN = ["global_batch_size=4", "epochs=2", "eval_interval=1", "lr=1e-2", "lr_warmup_steps=2"]
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    before, threads = signal.getsignal(signal.SIGTERM), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    signal.signal(signal.SIGTERM, before)
    torch.set_num_threads(threads)


def words(data: Path, run: Path, *more: str) -> list[str]:
    return [*MODEL, *RUN, f"data_paths=[{data}]", f"checkpoint_path={run}", *more]


def metrics(run: Path, event: str) -> list[dict]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def weights(run: Path, step: int) -> dict:
    return torch.load(run / f"step_{step}" / "state.pt", weights_only=True)


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
    saved = weights(run, total)
    assert saved["ema"].keys() == {n for n in saved["model"] if n in saved["ema"]}
    assert any((saved["ema"][n] != saved["model"][n]).any() for n in saved["ema"])
    assert f"step {total}/{total} loss " in capsys.readouterr().out


def test_the_checkpoint_is_written_before_the_evaluation(small_set: Path, tmp_path: Path) -> None:
    pretrain(words(small_set, tmp_path / "run"))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines]
    assert [e for e in events if e != "step"] == ["checkpoint", "eval"] * 2 + ["finished"]


def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(small_set: Path, tmp_path: Path) -> None:
    """Weights, moments, average, carry, random numbers: stopped mid-iteration, continued."""
    settings = ("ema=True", "arch.halt_max_steps=4", "arch.halt_exploration_prob=0.5")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    pretrain(words(small_set, whole, "max_steps=6", *settings))
    pretrain(words(small_set, cut, "max_steps=2", "evaluators=[]", *settings))
    again = words(small_set, cut, "max_steps=6", "load_checkpoint=latest", *settings)
    assert pretrain(again) == 0
    assert [line["step"] for line in metrics(cut, "step")] == list(range(1, 7))
    ours, theirs = weights(cut, 6), weights(whole, 6)
    assert_same(ours, theirs)
    ours, theirs = (torch.load(r / "step_6" / "rank_0.pt", weights_only=True) for r in (cut, whole))
    assert_same(ours, theirs)
    losses = [[line["loss"] for line in metrics(run, "step")] for run in (whole, cut)]
    assert losses[0] == losses[1]


def assert_same(ours: object, theirs: object) -> None:
    if isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs)
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_same(ours[key], theirs[key])
    else:
        assert ours == theirs


def test_two_processes_train_as_one_does(small_set: Path, tmp_path: Path) -> None:
    """The same global batches, so the same losses and weights, and the same submission."""
    settings = ("arch.halt_exploration_prob=0", "epochs=1", "max_steps=3", "ema=True")
    pretrain(words(small_set, tmp_path / "one", *settings))
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launch += ["--standalone", "--local-addr", "127.0.0.1", "-m", "remote.pretrain"]
    two = words(small_set, tmp_path / "two", *settings)
    result = subprocess.run([*launch, *two], env=ONE_THREAD, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    ours, theirs = (
        [line["loss"] for line in metrics(tmp_path / run, "step")] for run in ("two", "one")
    )
    assert ours == pytest.approx(theirs, rel=1e-5)
    ours, theirs = (weights(tmp_path / run, 3)["model"] for run in ("two", "one"))
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-4)
    ours, theirs = (metrics(tmp_path / run, "eval")[0] for run in ("two", "one"))
    assert ours["all/count"] == theirs["all/count"]
    assert ours["all/lm_loss"] == pytest.approx(theirs["all/lm_loss"], rel=1e-4)
    assert (tmp_path / "two" / "step_3" / "rank_1.pt").exists()


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
    after, before = (weights(tmp_path / r, s)["model"] for r, s in (("run", 2), ("one", 1)))
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


def test_only_the_newest_checkpoints_are_kept(small_set: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    pretrain(words(small_set, run, "epochs=3", "evaluators=[]"))
    saved = sorted(int(path.name[5:]) for path in run.glob("step_*"))
    assert len(metrics(run, "checkpoint")) == 3
    assert saved == [line["step"] for line in metrics(run, "checkpoint")[1:]]


def test_upstreams_files_of_weights_are_read(small_set: Path, tmp_path: Path, capsys) -> None:
    """Flat, with the prefix of a compiled model, and with a puzzle table of another size."""
    pretrain(words(small_set, tmp_path / "run", "max_steps=1"))
    flat = {f"_orig_mod.{n}": t for n, t in weights(tmp_path / "run", 1)["model"].items()}
    table = "_orig_mod.model.inner.puzzle_emb.weights"
    flat[table] = torch.arange(48.0).reshape(3, 16)
    torch.save(flat, tmp_path / "step_72385")
    more = words(small_set, tmp_path / "on", f"load_checkpoint={tmp_path / 'step_72385'}", "lr=0")
    assert pretrain([*more, "max_steps=1", "puzzle_emb_lr=0"]) == 0
    loaded = weights(tmp_path / "on", 1)["model"]
    assert torch.equal(loaded[table[10:]], flat[table].mean(0).expand(25, 16))
    name = "model.inner.lm_head.weight"
    assert torch.equal(loaded[name], flat[f"_orig_mod.{name}"])


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("global_batch_size=768", "this trains no step"),
        ("load_checkpoint=latest", "no checkpoint in"),
        ("evaluators=[{name: arc@ACR}]", "no evaluator arc@ACR"),
        ("data_paths=[nowhere]", "no file nowhere/train/dataset.json"),
    ],
)
def test_check_refuses_what_cannot_work(
    word: str, message: str, small_set: Path, tmp_path: Path, capsys
) -> None:
    assert pretrain(["--check", *words(small_set, tmp_path / "run", word)]) == 2
    assert message in capsys.readouterr().err


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


def test_wandb_that_cannot_start_does_not_hold_up_training(small_set: Path, tmp_path: Path) -> None:
    broken = tmp_path / "site" / "wandb"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("def init(**_):\n    raise OSError('no route to host')\n")
    path = f"{broken.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = ONE_THREAD | {"WANDB_MODE": "online", "PYTHONPATH": path}
    command = [sys.executable, "-m", "remote.pretrain", *words(small_set, tmp_path / "run")]
    result = subprocess.run(
        [*command, "max_steps=1", "evaluators=[]"], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "wandb is off: no route to host; metrics.jsonl goes on" in result.stdout
    assert len(metrics(tmp_path / "run", "step")) == 1
