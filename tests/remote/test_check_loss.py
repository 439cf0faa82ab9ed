import json
from pathlib import Path

import pytest

from remote.check_loss import main as check_loss


def write(path: Path, losses: list[float]) -> str:
    lines = [{"event": "step", "step": s, "loss": loss} for s, loss in enumerate(losses, 1)]
    lines.append({"event": "eval", "step": len(losses), "ARC/pass@1": 0.0})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.mark.parametrize(
    ("losses", "code"),
    [
        ([2.0] * 10 + [1.9] * 10, 0),
        ([2.0] * 10 + [1.91] * 10, 1),
        ([2.0] * 20, 1),
        ([1.0] * 10 + [2.0] * 10, 1),
        ([2.0] * 19 + [float("nan")], 1),
        ([2.0, 1.0], 1),
        ([], 1),
    ],
)
def test_the_last_quarter_must_lie_a_share_below_the_first(
    losses: list[float], code: int, tmp_path: Path
) -> None:
    assert check_loss([write(tmp_path / "m.jsonl", losses), "--drop", "0.05"]) == code


def test_too_few_steps_are_named(tmp_path: Path, capsys) -> None:
    path = write(tmp_path / "m.jsonl", [2.0] * 6 + [1.0] * 6)
    assert check_loss([path, "--steps", "20"]) == 1
    assert "found 12 steps" in capsys.readouterr().out


def test_no_file_is_a_failure_not_a_traceback(tmp_path: Path, capsys) -> None:
    assert check_loss([str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().out


def test_of_a_repeated_step_the_later_line_counts(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write(path, [2.0] * 10 + [9.0] * 10)
    resumed = [{"step": step, "loss": 1.0} for step in range(11, 21)]
    path.write_text(path.read_text() + "".join(json.dumps(line) + "\n" for line in resumed))
    assert check_loss([str(path)]) == 0
