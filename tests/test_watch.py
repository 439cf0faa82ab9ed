"""What a training says of itself, and what is made of it."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpurun.engine.watch import tail
from gpurun.engine.watch.metrics import PIECE_BYTES, Followed
from gpurun.engine.watch.progress import Progress
from gpurun.engine.watch.said import Lines, from_log, holds, wandb_run
from gpurun.shell.local import LocalShell

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_progress_moves_only_with_the_step() -> None:
    progress = Progress(NOW)
    progress.hear({"step": 1, "loss": 2.0}, at(5))
    progress.hear({"step": 1, "loss": 1.9}, at(9))
    progress.hear({"lr": 0.1}, at(10))
    assert progress.moved_at == at(5)


def test_a_step_whose_loss_is_not_finite_is_no_progress() -> None:
    progress = Progress(NOW)
    progress.hear({"step": 1, "loss": 2.0}, at(1))
    progress.hear({"step": 2, "loss": float("nan")}, at(2))
    progress.hear({"step": 3, "loss": float("inf")}, at(3))
    assert (progress.moved_at, progress.broken_since) == (at(1), at(2))
    assert progress.document()["loss"] is None
    progress.hear({"step": 4, "loss": 1.9}, at(4))
    assert (progress.moved_at, progress.broken_since) == (at(4), None)


def test_an_event_and_a_new_checkpoint_are_progress() -> None:
    progress = Progress(NOW)
    progress.hear({"step": 7}, at(1))
    progress.hear({"step": 7, "event": "eval"}, at(300))
    assert progress.moved_at == at(300)
    progress.checkpoint(at(400))
    progress.checkpoint(at(401))  # the same file, its age rounded otherwise
    assert (progress.moved_at, progress.checkpoint_at) == (at(400), at(400))


def test_the_time_left_follows_from_steps_and_speed() -> None:
    progress = Progress(NOW)
    progress.hear({"step": 10, "total_steps": 40, "it_per_s": 2.0}, NOW)
    assert progress.document()["eta_s"] == 15.0


def test_the_speed_is_derived_where_the_training_does_not_say_it() -> None:
    progress = Progress(NOW)
    for second in range(0, 300, 10):
        progress.hear({"step": second * 4, "total_steps": 2000}, at(second))
    document = progress.document()
    assert (document["it_per_s"], document["eta_s"]) == (4.0, 210.0)


def test_the_derived_speed_is_the_latest_and_forgets_a_step_that_began_anew() -> None:
    progress = Progress(NOW)
    for second in range(0, 200, 10):
        progress.hear({"step": second * 10}, at(second))
    for second in range(200, 400, 10):
        progress.hear({"step": 2000 + (second - 200)}, at(second))
    assert progress.it_per_s == pytest.approx(1.0)
    progress.hear({"step": 5}, at(400))
    assert progress.it_per_s is None


@pytest.mark.parametrize(
    "line",
    [
        {"step": 10, "total_steps": 40, "it_per_s": 0},
        {"step": "ten", "total_steps": 40, "it_per_s": 1.0},
        {"step": 10},
        {},
    ],
)
def test_nothing_is_said_of_the_time_left_when_it_is_not_known(line: dict[str, object]) -> None:
    progress = Progress(NOW)
    progress.hear(line, NOW)
    assert progress.document()["eta_s"] is None


def test_the_clock_of_a_hang_goes_on_with_another_driver() -> None:
    first = Progress(NOW)
    first.hear({"step": 5, "loss": 1.0, "acc": 0.5}, at(10))
    second = Progress(at(1000), json.loads(json.dumps(first.kept())))
    second.hear({"step": 5, "loss": 1.0}, at(1001))
    assert second.moved_at == at(10)
    assert second.said["acc"] == 0.5  # for `stop_when`
    second.hear({"step": 6}, at(1002))
    assert second.moved_at == at(1002)


@pytest.mark.parametrize(
    "kept", [{"moved_at": "soon", "said": []}, {"moved_at": 5, "said": {"step": "x"}}]
)
def test_nonsense_that_was_kept_is_as_nothing(kept: dict[str, object]) -> None:
    assert Progress(NOW, kept).moved_at == NOW


def test_a_box_cannot_make_us_keep_more_than_so_many_names() -> None:
    progress = Progress(NOW)
    progress.hear({f"name{n}": n for n in range(5000)} | {"x" * 5000: 1}, NOW)
    assert len(json.dumps(progress.kept())) < 10_000


@pytest.mark.parametrize(
    ("rule", "value", "is_held"),
    [
        ("ARC/pass@1 > 0.05", 0.06, True),
        ("ARC/pass@1 > 0.05", 0.05, False),
        ("ARC/pass@1 >= 0.05", 0.05, True),
        ("loss < 1", 0.5, True),
        ("loss <= 1e-3", 0.001, True),
        ("loss == 2", 2, True),
    ],
)
def test_a_stop_rule_compares_the_newest_value(rule: str, value: float, is_held: bool) -> None:
    assert holds(rule, {rule.split()[0]: value}) is is_held


def test_a_metric_that_was_never_said_stops_nothing() -> None:
    assert not holds("loss < 1", {})
    assert not holds("loss < 1", {"loss": "low"})


def test_a_pattern_over_the_log_gives_numbers_and_broken_losses() -> None:
    text = "step 12/40 loss nan lr 1e-4\nnoise\nstep 13/40 loss 2.5 lr x\n"
    pattern = r"step (?P<step>\d+)/(?P<total>\d+) loss (?P<loss>\S+)"
    first, second = from_log(pattern, text)
    assert (first["step"], first["total_steps"], second["loss"]) == (12, 40, 2.5)
    assert first["loss"] != first["loss"]


def test_lines_that_are_cut_anywhere_are_whole_again() -> None:
    lines = Lines()
    text = b"a 1\rb 2\r\nc \xc3\xa9 3\n"
    said = "".join(lines.take(text[n : n + 1]) for n in range(len(text)))
    assert said.split("\n") == ["a 1", "b 2", "", "c é 3", ""]
    assert lines.take(b"the end") + lines.rest() == "the end"


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    lines = Lines()
    said = "".join(lines.take(b"x" * 50_000) for _ in range(10))
    assert len(said) + len(lines.rest()) == 500_000
    assert len(said) >= 400_000


def test_the_address_of_a_wandb_run_is_found_in_what_wandb_prints() -> None:
    line = "wandb: \N{ROCKET} View run at https://wandb.ai/someone/arcagi/runs/z6p67p67\nmore"
    assert wandb_run(line) == "https://wandb.ai/someone/arcagi/runs/z6p67p67"
    assert wandb_run("see https://wandb.ai/x/runs/1") is None
    assert wandb_run("wandb: View run at https://e/\x1b[31m/runs/1") is None


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    assert "nothing" in tail(log)
    log.write_bytes(b"".join(b"line %d\n" % n for n in range(20)))
    assert tail(log).splitlines() == [f"line {n}" for n in range(10, 20)]


class Box:
    """A folder on this machine, and what is followed in it."""

    def __init__(self, root: Path, kept: object = None) -> None:
        self.root = root
        self.shell = LocalShell(root, env={"PATH": "/usr/local/bin:/usr/bin:/bin"})
        self.files = Followed("out/*/metrics.jsonl", kept)

    def write(self, name: str, text: str, mode: str = "a") -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode) as file:
            file.write(text)

    def steps(self) -> list[int]:
        result = self.shell.run(self.files.text(), timeout_s=10)
        assert result.ok, result.output
        return [line["step"] for line in self.files.hear(result.output.splitlines())]


def steps(*numbers: int) -> str:
    return "".join(json.dumps({"step": number}) + "\n" for number in numbers)


def test_every_line_of_the_metrics_is_heard_once_however_they_are_written(tmp_path: Path) -> None:
    box = Box(tmp_path)
    assert box.steps() == []
    box.write("out/it's a run/metrics.jsonl", steps(1, 2) + '{"st')
    assert box.steps() == [1, 2]
    box.write("out/it's a run/metrics.jsonl", 'ep": 3}\n' + steps(4).rstrip("\n"))
    assert box.steps() == [3, 4]  # the last line is whole, though it is not ended
    box.write("out/it's a run/metrics.jsonl", "\n" + steps(5))
    box.write("out/other/metrics.jsonl", steps(9))
    assert box.steps() == [5, 9]
    assert box.steps() == []


def test_another_driver_hears_the_metrics_on_from_where_the_last_one_was(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.write("out/a/metrics.jsonl", steps(1, 2))
    box.steps()
    kept = json.loads(json.dumps(box.files.kept()))
    box.write("out/a/metrics.jsonl", steps(3))
    assert Box(tmp_path, kept).steps() == [3]


def test_metrics_that_begin_anew_are_read_from_their_start(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.write("out/a/metrics.jsonl", steps(1, 2, 3))
    box.steps()
    box.write("out/a/metrics.jsonl", steps(1), "w")
    assert box.steps() == [1]


def test_metrics_that_grow_faster_than_one_look_can_bring_are_all_heard(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.write("out/a/metrics.jsonl", steps(0))
    assert box.steps() == [0]
    many = range(1, 60_000)
    box.write("out/a/metrics.jsonl", steps(*many))
    heard = box.steps()
    assert box.files.behind
    while box.files.behind:
        heard += box.steps()
    assert heard == list(many)


def test_a_long_file_that_was_never_seen_is_read_from_near_its_end(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.write("out/a/metrics.jsonl", steps(*range(60_000)))
    heard = box.steps()
    assert heard[-1] == 59_999
    assert 1000 < len(heard) < PIECE_BYTES / 10
    assert not box.files.behind


def test_what_is_no_answer_of_ours_is_not_heard() -> None:
    files = Followed("out/*")
    assert (
        files.hear(["1 2 3", "9 0 !!! !!!", "x 0 YQ== YQ==", "", "1" * 50 + " 0 YQ== YQ=="]) == []
    )
    assert files.kept() == {}
