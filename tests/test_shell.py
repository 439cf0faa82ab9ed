"""LocalShell: the shells' contract, and what only a shell on this machine can promise."""

import os
import select
from pathlib import Path

import pytest

from gpurun.shell.local import LocalShell
from tests.shells import ShellContract

PATH = os.defpath


class TestLocalShell(ShellContract):
    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        (tmp_path / "box").mkdir()
        return str(tmp_path / "box")

    @pytest.fixture
    def shell(self, root: str) -> LocalShell:
        return LocalShell(Path(root), env={"PATH": PATH})


def wait_for_end(pid: int) -> None:
    """Return when this process has exited; fail after ten seconds."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 10)[0], f"process {pid} lives on"
    finally:
        os.close(descriptor)


def test_only_the_given_environment_is_seen(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    shell = LocalShell(tmp_path, env={"PATH": PATH, "GREETING": "hello"})
    seen = shell.run("env", timeout_s=10).output
    assert "GREETING=hello" in seen
    assert "secret" not in seen


def test_a_prefix_runs_the_command(tmp_path: Path) -> None:
    shell = LocalShell(tmp_path, prefix=["env", "SIDE=inside"], env={"PATH": PATH})
    assert shell.run('echo "$SIDE"', timeout_s=10).output == "inside\n"


def test_a_box_that_is_gone_has_no_outcome(tmp_path: Path) -> None:
    gone = LocalShell(tmp_path, env={"PATH": PATH}, alive=lambda: False)
    assert gone.run("touch made", timeout_s=10).exited == -1
    assert not (tmp_path / "made").exists()
    assert LocalShell(tmp_path / "no", env={"PATH": PATH}).run("true", timeout_s=10).exited == -1


def test_a_box_that_goes_under_a_command_leaves_its_outcome_unknown(tmp_path: Path) -> None:
    shell = LocalShell(
        tmp_path, env={"PATH": PATH}, alive=lambda: not (tmp_path / "ended").exists()
    )
    assert shell.run("touch ended; kill -KILL $$", timeout_s=10).exited == -1


def test_a_command_begun_as_its_box_goes_is_ended_by_who_began_it(tmp_path: Path) -> None:
    answers = iter([True])  # alive when asked before the command starts, and never again
    shell = LocalShell(tmp_path, env={"PATH": PATH}, alive=lambda: next(answers, False))
    lines: list[str] = []
    result = shell.run("echo $$; exec sleep 300", timeout_s=60, on_line=lines.append)
    assert result.exited == -1
    for pid in lines:
        wait_for_end(int(pid))
