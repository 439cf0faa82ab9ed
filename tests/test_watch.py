"""What a training says of itself, and what is made of it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpurun.engine.watch import Progress, holds, tail

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def test_progress_moves_only_with_the_step() -> None:
    progress = Progress(NOW)
    progress.hear({"step": 1, "loss": 2.0}, NOW + timedelta(seconds=5))
    progress.hear({"step": 1, "loss": 1.9}, NOW + timedelta(seconds=9))
    assert progress.moved_at == NOW + timedelta(seconds=5)


def test_the_time_left_follows_from_steps_and_speed() -> None:
    progress = Progress(NOW)
    progress.hear({"step": 10, "total_steps": 40, "it_per_s": 2.0}, NOW)
    assert progress.document()["eta_s"] == 15.0


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


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    assert "nothing" in tail(log)
    log.write_bytes(b"".join(b"line %d\n" % n for n in range(20)))
    assert tail(log).splitlines() == [f"line {n}" for n in range(10, 20)]
