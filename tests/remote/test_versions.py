"""Checkpoints that another version of this program wrote, and settings that nobody could."""

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from remote.evaluate import main as evaluate
from remote.pretrain import main as pretrain
from tests.remote.runs import ONE_THREAD, quiet, shared, train, words

__all__ = ["quiet"]


@pytest.fixture(scope="module")
def one_step(small_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("one") / "run"
    torch.set_num_threads(1)
    train(small_set, run, "max_steps=1", "evaluators=[]", "min_eval_interval=99")
    return run


@pytest.fixture
def run(one_step: Path, tmp_path: Path) -> Path:
    """The same, to be changed; nothing says what its files were."""
    copy = Path(shutil.copytree(one_step, tmp_path / "run"))
    (copy / "step_1" / "files.json").write_text(json.dumps({"state.pt": entry(copy)}))
    return copy


def entry(run: Path) -> dict[str, Any]:
    content = (run / "step_1" / "state.pt").read_bytes()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def edit_settings(run: Path, change: Callable[[dict], object]) -> None:
    path = run / "step_1" / "config.json"
    settings = json.loads(path.read_text())
    change(settings)
    path.write_text(json.dumps(settings))


def test_settings_that_are_not_known_or_not_there_are_named(run: Path, caplog) -> None:
    edit_settings(run, lambda settings: settings.update(colour="red") or settings.pop("ema_rate"))
    assert evaluate([str(run)]) == 0
    assert "config.json: colour=red is not known here: ignored" in caplog.text
    assert "config.json has no ema_rate: the defaults are taken" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["arch"].update(depth=3), "config.json: arch.depth=3 is not known here"),
        (lambda s: s.update(arch_name="gpt"), "config.json holds no settings of a model known"),
        (lambda s: s.pop("arch_name"), "config.json holds no settings of a model known"),
        (lambda s: s.update(lr="fast"), "lr='fast': expected float"),
    ],
)
def test_settings_of_another_model_are_refused(
    change: Callable[[dict], object], message: str, run: Path, capsys
) -> None:
    edit_settings(run, change)
    assert evaluate([str(run)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{", "[]", "7"])
def test_settings_that_are_none_are_refused(text: str, run: Path, capsys) -> None:
    (run / "step_1" / "config.json").write_text(text)
    assert evaluate([str(run)]) == 2
    assert str(run / "step_1" / "config.json") in capsys.readouterr().err


@pytest.mark.parametrize("name", ["votes", "data_digest", "optimizer_kind", "config", "world_size"])
def test_a_checkpoint_without_something_names_it(
    name: str, run: Path, small_set: Path, tmp_path: Path, capsys
) -> None:
    state = shared(run, 1)
    del state[name]
    torch.save(state, run / "step_1" / "state.pt")
    (run / "step_1" / "files.json").write_text(json.dumps({"state.pt": entry(run)}))
    more = (f"load_checkpoint={run}", "max_steps=2")
    assert pretrain(words(small_set, tmp_path / "on", *more)) == 2
    said = capsys.readouterr().err
    assert f"step_1 was written by another version of this program (KeyError: '{name}')" in said


def test_an_evaluation_shows_where_it_is_when_asked(one_step: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "remote.evaluate",
        str(one_step),
        f"checkpoint_path={tmp_path}",
    ]
    process = subprocess.Popen(
        [*command, "arch.halt_max_steps=100000"],
        env=ONE_THREAD,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert any(line.startswith("evaluating: 0 of") for line in process.stdout)
        process.send_signal(signal.SIGUSR1)
        assert any("most recent call first" in line for line in process.stderr)
    finally:
        process.kill()
        process.communicate()
