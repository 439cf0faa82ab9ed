"""A disk without room for a checkpoint: a real one, or files that may not grow."""

import contextlib
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.pretrain import main as pretrain
from tests.remote.runs import (
    assert_same,
    everything,
    metrics,
    quiet,
    ranked,
    shared,
    train,
    words,
)

__all__ = ["quiet"]

SETTINGS = ("max_steps=4", "checkpoint_every_n_steps=1", "evaluators=[]", "min_eval_interval=99")
TOO_FEW_BYTES = 50_000  # less than the state, more than anything else that is written


@contextlib.contextmanager
def files_of_at_most(count: int) -> Iterator[None]:
    """Bytes.  A write beyond fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_stays_full_ends_the_run_with_the_last_checkpoint_whole(
    small_set: Path, tmp_path: Path, capsys
) -> None:
    """Three times in a row; the steps meanwhile are made."""
    run = tmp_path / "run"
    train(small_set, run, *SETTINGS, "max_steps=1")
    before = everything(run, 1)
    with files_of_at_most(TOO_FEW_BYTES):
        more = ("load_checkpoint=latest", "max_steps=9")
        assert pretrain(words(small_set, run, *SETTINGS, *more)) == 1
    said = capsys.readouterr().err
    assert "step_4 was not saved (RuntimeError: " in said
    assert f"the last checkpoint is {run}/step_1" in said
    assert [line["step"] for line in metrics(run, "not saved")] == [2, 3]
    assert [line["step"] for line in metrics(run, "step")] == [1, 2, 3, 4]
    assert [path.name for path in run.glob("step_*")] == ["step_1"]
    assert_same(everything(run, 1), before)


def test_what_one_rank_cannot_save_all_ranks_know(small_set: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with ranked(2, words(small_set, run, *SETTINGS, "hang_minutes=5")) as both:
        both[1].limit_files(TOO_FEW_BYTES // 10)
        ends = [rank.end() for rank in both]
    assert [status for status, _ in ends] == [1, 1], ends
    assert all("was not saved" in said for _, said in ends)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Of so many bytes that two checkpoints fit, and not three."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1400k", "none", str(place)]
    subprocess.run(mount, check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.box
def test_older_checkpoints_make_room_for_the_next(small_set: Path, small_disk: Path) -> None:
    run = small_disk / "run"
    train(small_set, run, *SETTINGS, "keep_last=5", "keep_best=0")
    assert shared(run, 4)["step"] == 4
    assert metrics(run, "not saved") == []
    sizes = {p.name: sum(f.stat().st_size for f in p.iterdir()) for p in run.glob("step_*")}
    assert len(sizes) == 2, sizes
