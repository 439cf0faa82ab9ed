"""A command that outlives whoever launched it, seen by its marks alone."""

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.clock import Deadline
from gpurun.engine.detached import (
    Sight,
    exports,
    kill_text,
    launch_text,
    look,
    tail_text,
    terminate_text,
)
from gpurun.provider import Login
from gpurun.shell.fabric import FabricShell
from gpurun.shell.local import LocalShell
from tests.boxes import Shape, box


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[LocalShell]:
    root = tmp_path / "it's a root"
    (root / ".gpurun").mkdir(parents=True)
    made = LocalShell(root, env={"PATH": "/usr/local/bin:/usr/bin:/bin"})
    yield made
    made.run(terminate_text("train").replace("TERM", "KILL"), timeout_s=10)


def launch(shell: LocalShell, command: str, secrets: str = "/nonexistent") -> None:
    result = shell.run(launch_text("train", command, secrets), timeout_s=20)
    assert result.ok, result.output


def ended(shell: LocalShell) -> Sight:
    deadline = Deadline(20)
    while not deadline.passed():
        sight = look(shell, "train", 0, timeout_s=10)
        if sight.exit_code is not None:
            return sight
    raise AssertionError("it does not end")


def test_before_the_launch_there_is_nothing(shell: LocalShell) -> None:
    assert look(shell, "train", 0, timeout_s=10).started is False


@pytest.mark.parametrize("code", [0, 7])
def test_the_exit_code_is_the_commands_own(shell: LocalShell, code: int) -> None:
    launch(shell, f"echo said 'it'; exit {code}")
    sight = ended(shell)
    assert (sight.exit_code, sight.log) == (code, b"said it\n")


def test_three_launches_run_it_once(shell: LocalShell) -> None:
    for _ in range(3):
        launch(shell, "echo x >> launches; sleep 0.2")
    ended(shell)
    assert (shell.root / "launches").read_text() == "x\n"


def test_sigterm_reaches_all_that_it_started_and_its_exit_code_is_kept(shell: LocalShell) -> None:
    launch(shell, "trap 'echo saved; exit 0' TERM; while :; do sleep 0.05; done")
    assert look(shell, "train", 0, timeout_s=10).alive
    shell.run(terminate_text("train"), timeout_s=10)
    sight = ended(shell)
    assert sight.exit_code == 0
    assert b"saved" in sight.log


def test_a_command_that_is_killed_is_seen_as_gone_without_an_exit_code(shell: LocalShell) -> None:
    launch(shell, "while :; do sleep 0.05; done")
    shell.run(terminate_text("train").replace("TERM", "KILL"), timeout_s=10)
    deadline = Deadline(10)
    while (sight := look(shell, "train", 0, timeout_s=10)).alive:
        assert not deadline.passed()
    assert (sight.started, sight.exit_code) == (True, None)


def test_another_boot_is_told_from_a_running_command(shell: LocalShell) -> None:
    launch(shell, "while :; do sleep 0.05; done")
    (shell.root / ".gpurun/train.started/boot").write_text("another boot\n")
    assert look(shell, "train", 0, timeout_s=10).rebooted


def test_the_log_is_read_on_from_an_offset_byte_by_byte(shell: LocalShell) -> None:
    launch(shell, r"printf 'a\000\377\rb\n'")
    assert ended(shell).log == b"a\x00\xff\rb\n"
    assert look(shell, "train", 4, timeout_s=10).log == b"b\n"


def test_the_newest_lines_of_the_metrics_are_read_through_a_glob(shell: LocalShell) -> None:
    launch(shell, "mkdir -p 'ck/a b'; echo '{\"step\": 1}' > 'ck/a b/metrics.jsonl'")
    ended(shell)
    assert look(
        shell, "train", 0, {"metrics": tail_text("ck/*/metrics.jsonl")}, timeout_s=10
    ).sections == {"metrics": ('{"step": 1}',)}


def test_secrets_are_read_once_and_the_file_is_gone(shell: LocalShell, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets.env"
    secrets.write_text(exports([("TOKEN", "it's $HOME `x`")]))
    launch(shell, 'printf %s "$TOKEN"', str(secrets))
    assert ended(shell).log == b"it's $HOME `x`"
    assert not secrets.exists()


@pytest.mark.box
def test_the_exit_code_is_told_though_the_command_has_filled_the_disk(tmp_path: Path) -> None:
    with box(Shape(disk_mb=64)) as machine:
        login = Login("full", "root", ((machine.host, machine.port),), "/workspace", machine.key)
        shell = FabricShell(login, tmp_path)
        launch_there = launch_text("train", "dd if=/dev/zero of=full bs=1M || exit 28")
        assert shell.run(f"mkdir .gpurun; {launch_there}", timeout_s=20).ok
        deadline = Deadline(20)
        while (sight := look(shell, "train", 0, timeout_s=10)).exit_code is None:
            assert not deadline.passed(), sight
        assert sight.exit_code == 28
        shell.close()


def test_one_that_is_only_just_launched_is_not_taken_for_dead(shell: LocalShell) -> None:
    """Its folder is there, its process not yet: a second launch waits, a look says nothing else."""
    started = shell.root / ".gpurun" / "train.started"
    started.mkdir(parents=True)
    sight = look(shell, "train", 0, timeout_s=10, wait_s=0.2)
    assert (sight.started, sight.exit_code, sight.log) == (True, None, b"")
    second = threading.Thread(target=launch, args=(shell, "echo never"))
    second.start()
    second.join(0.5)
    assert second.is_alive()
    (started / "pid").write_text(f"{os.getpid()}\n")
    second.join(10)
    assert not second.is_alive()
    (started / "pid").unlink()


def test_a_number_that_another_process_has_by_now_is_not_its_own(shell: LocalShell) -> None:
    """The training is over; what bears its pid, and leads a group, was started by somebody else."""
    launch(shell, "true")
    ended(shell)
    kept = shell.root / ".gpurun/train.started"
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        (kept / "pid").write_text(f"{other.pid}\n")
        (shell.root / ".gpurun/train.exit").unlink()
        assert not look(shell, "train", 0, timeout_s=10).alive
        for text in (terminate_text("train"), kill_text("train")):
            assert shell.run(text, timeout_s=10).ok
        assert other.poll() is None
        (kept / "start").unlink()  # as an older gpurun has launched it
        assert look(shell, "train", 0, timeout_s=10).alive
    finally:
        other.kill()
        other.wait()
