"""LocalShell: what a command says, how it ends, and what it must not see or leave behind."""

import os
import select
import threading
from pathlib import Path

import pytest

from gpurun.shell import KEPT_CHARS
from gpurun.shell.local import LocalShell

PATH = os.defpath


@pytest.fixture
def shell(tmp_path: Path) -> LocalShell:
    return LocalShell(tmp_path, env={"PATH": PATH})


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


def test_both_streams_come_in_one_order_with_the_exit_code(shell: LocalShell) -> None:
    result = shell.run("echo one; echo two >&2; echo three; exit 3", timeout_s=10)
    assert (result.exited, result.output) == (3, "one\ntwo\nthree\n")


def test_commands_run_in_the_root_directory(shell: LocalShell, tmp_path: Path) -> None:
    assert shell.run("pwd", timeout_s=10).output == f"{tmp_path}\n"


def test_only_the_given_environment_is_seen(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    shell = LocalShell(tmp_path, env={"PATH": PATH, "GREETING": "hello"})
    seen = shell.run("env", timeout_s=10).output
    assert "GREETING=hello" in seen
    assert "secret" not in seen


def test_a_prefix_runs_the_command(tmp_path: Path) -> None:
    shell = LocalShell(tmp_path, prefix=["env", "SIDE=inside"], env={"PATH": PATH})
    assert shell.run('echo "$SIDE"', timeout_s=10).output == "inside\n"


def test_death_by_signal_is_told_as_sh_tells_it(shell: LocalShell) -> None:
    assert shell.run("kill -TERM $$", timeout_s=10).exited == 128 + 15


def test_lines_are_told_as_they_come(shell: LocalShell, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")

    def answer(line: str) -> None:
        lines.append(line)
        if line == "ready":  # the command waits for this: were lines held back, it would time out
            (tmp_path / "go").write_text("go\n")

    lines: list[str] = []
    result = shell.run("echo ready; read -r word <go; echo got $word", timeout_s=10, on_line=answer)
    assert result.ok
    assert lines == ["ready", "got go"]


def test_a_carriage_return_ends_a_line_of_progress(shell: LocalShell) -> None:
    lines: list[str] = []
    shell.run(r"printf '10%%\r20%%\rdone\r\nlast'", timeout_s=10, on_line=lines.append)
    assert lines == ["10%", "20%", "done", "last"]


def test_a_character_cut_by_the_pipe_is_whole_again(shell: LocalShell) -> None:
    result = shell.run(r"printf '\303'; sleep 0.1; printf '\244\377'", timeout_s=10)
    assert result.output == "ä\N{REPLACEMENT CHARACTER}"


def test_stdin_is_passed_and_closed(shell: LocalShell) -> None:
    text = "x" * 3_000_000  # far more than a pipe holds
    assert shell.run("wc -c", timeout_s=30, stdin=text).output.strip() == "3000000"


def test_a_command_that_does_not_read_its_stdin_is_fine(shell: LocalShell) -> None:
    assert shell.run("exit 5", timeout_s=10, stdin="x" * 3_000_000).exited == 5


def test_without_stdin_a_reader_gets_the_end_at_once(shell: LocalShell) -> None:
    assert shell.run("cat", timeout_s=10).ok


def test_a_child_left_behind_does_not_keep_the_command(shell: LocalShell) -> None:
    result = shell.run("sleep 300 & echo $!", timeout_s=30)
    try:
        assert result.ok
        os.kill(int(result.output), 0)  # it lives: a launched training must
    finally:
        os.kill(int(result.output), 9)


def test_a_child_that_writes_for_ever_does_not_keep_it_either(shell: LocalShell) -> None:
    result = shell.run("yes & echo; sleep 0.1", timeout_s=30)
    assert result.ok
    assert "y" in result.output


def test_a_command_that_closes_its_output_is_waited_for(shell: LocalShell) -> None:
    assert shell.run("exec >&- 2>&-; sleep 0.2; exit 4", timeout_s=30).exited == 4


@pytest.mark.parametrize(
    "command",
    [
        "echo $$; exec sleep 300",
        "sleep 300 & echo $!; wait",
        "timeout 300 sleep 300 & echo $!; wait",  # timeout(1) makes a process group of its own
        "trap '' TERM INT HUP; echo $$; sleep 300; sleep 300",
    ],
)
def test_a_timeout_ends_what_the_command_started(shell: LocalShell, command: str) -> None:
    result = shell.run(command, timeout_s=0.5)
    assert result.exited == 124
    wait_for_end(int(result.output))


def test_output_is_kept_from_its_end_and_bounded(shell: LocalShell) -> None:
    result = shell.run("seq 1 400000", timeout_s=30)
    assert len(result.output) == KEPT_CHARS
    assert result.output.endswith("399999\n400000\n")
    assert result.tail(1) == "400000"


def test_a_line_without_end_is_told_in_parts(shell: LocalShell) -> None:
    parts: list[str] = []
    shell.run("head -c 300000 /dev/zero | tr '\\0' x", timeout_s=30, on_line=parts.append)
    assert "".join(parts) == "x" * 300_000
    assert len(parts) > 1


def test_if_the_listener_fails_the_command_is_ended(shell: LocalShell) -> None:
    pids: list[int] = []

    def refuse(line: str) -> None:
        pids.append(int(line))
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        shell.run("echo $$; exec sleep 300", timeout_s=30, on_line=refuse)
    wait_for_end(pids[0])


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


def test_commands_of_several_threads_do_not_mix(shell: LocalShell) -> None:
    outputs: dict[int, str] = {}

    def ask(number: int) -> None:
        outputs[number] = shell.run(f"echo {number}", timeout_s=30).output

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == {number: f"{number}\n" for number in range(16)}


def test_no_descriptor_is_left_open(shell: LocalShell) -> None:
    shell.run("true", timeout_s=10)
    before = len(os.listdir("/dev/fd"))  # noqa: PTH208
    for _ in range(20):
        shell.run("cat", timeout_s=10, stdin="text")
    assert len(os.listdir("/dev/fd")) == before  # noqa: PTH208


def test_files_are_put_and_got_whole(shell: LocalShell, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"\0\r\n" * 1000)
    source.chmod(0o751)
    shell.put(source, "deep/down/target")
    assert (tmp_path / "deep/down/target").read_bytes() == source.read_bytes()
    assert (tmp_path / "deep/down/target").stat().st_mode & 0o777 == 0o751
    shell.get("deep/down/target", tmp_path / "back/again")
    assert (tmp_path / "back/again").read_bytes() == source.read_bytes()


def test_a_copy_that_fails_leaves_the_good_file_alone(shell: LocalShell, tmp_path: Path) -> None:
    good = tmp_path / "kept" / "good"
    good.parent.mkdir()
    good.write_text("good")
    (tmp_path / "directory").mkdir()
    for source in ("missing", "directory"):
        with pytest.raises(OSError):
            shell.get(source, good)
    assert good.read_text() == "good"
    assert list(good.parent.iterdir()) == [good]
