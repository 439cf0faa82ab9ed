"""metrics.jsonl of a run that was killed: every line whole, every step that counts once."""

import json
import resource
import signal
from pathlib import Path

import pytest

from remote.config import load_config
from remote.history import UNDONE, go_on_from
from remote.report import Report
from tests.remote.runs import losses, metrics, quiet, ranked, train, words

__all__ = ["quiet"]

NO_EVALUATION = ("evaluators=[]", "min_eval_interval=99")


def line(event: str, step: int) -> str:
    return json.dumps({"event": event, "step": step})


def test_what_came_after_the_checkpoint_is_kept_apart_and_a_torn_line_goes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    seen = [line("step", 1), line("step", 2), line("checkpoint", 2)]
    undone = [line("eval", 2), line("step", 3), line("checkpoint", 3)]
    path.write_text("\n".join([*seen, *undone, '{"event": "st']))
    go_on_from(path, 2)
    assert path.read_text().splitlines() == seen
    assert (tmp_path / UNDONE).read_text().splitlines() == undone
    go_on_from(path, 2)
    assert path.read_text().splitlines() == seen
    assert (tmp_path / UNDONE).read_text().splitlines() == undone


def test_a_checkpoint_of_another_run_leaves_the_lines_up_to_its_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    go_on_from(path, 7)  # there is none
    assert not path.exists()
    path.write_text("".join(line("step", step) + "\n" for step in (1, 2, 3)))
    go_on_from(path, 2)
    assert [json.loads(text)["step"] for text in path.read_text().splitlines()] == [1, 2]


def test_a_run_killed_while_it_writes_a_line_has_each_step_once_when_it_went_on(
    small_set: Path, tmp_path: Path
) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    settings = ("max_steps=6", "checkpoint_every_n_steps=2", *NO_EVALUATION)
    with ranked(1, words(small_set, run, *settings)) as (rank,):
        rank.until("step 5/")
        rank.signal(signal.SIGKILL)
        rank.end()  # where the kill came late, it was over: nothing may differ then either
    path = run / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-7])  # as a kill leaves it whose line was not whole
    train(small_set, run, *settings, "load_checkpoint=latest")
    train(small_set, whole, *settings)
    assert [said["step"] for said in metrics(run, "step")] == list(range(1, 7))
    assert losses(run) == losses(whole)
    saved = [said["step"] for said in metrics(run, "checkpoint")]
    assert len(saved) == len(set(saved))


def test_a_disk_without_room_for_a_line_leaves_whole_lines_and_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_config([f"checkpoint_path={tmp_path}"])
    config.settle_names("now")
    report = Report(config, 9, speaks=True)
    report.event("begun", 1)
    room = (tmp_path / "metrics.jsonl").stat().st_size + 10
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        report.event("lost", 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    report.event("ended", 3)
    report.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(text)["event"] for text in lines] == ["begun", "ended"]
    assert "a line is missing in" in caplog.text
