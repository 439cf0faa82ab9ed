"""What every shell promises: one suite that LocalShell and FabricShell pass.

A subclass gives a `shell` on a living box whose root directory, `root`, is empty.  What the box
holds is asked through the shell itself, for its processes have numbers of their own.
"""

import os
import shlex
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.shell import KEPT_CHARS, Shell

ODD_NAMES = ["with space", "quo'te\"s", "-rf", "$HOME `id`", "new\nline", "ünïcödé", ".hidden"]


def wait_for_end(shell: Shell, pid: int | str) -> None:
    """Return when this process of the box is gone; fail after ten seconds."""
    gone = shell.run(f"while kill -0 {pid} 2>/dev/null; do sleep 0.02; done", timeout_s=10)
    assert gone.ok, f"process {pid} lives on"


class ShellContract:
    def test_both_streams_come_in_one_order_with_the_exit_code(self, shell: Shell) -> None:
        result = shell.run("echo one; echo two >&2; echo three; exit 3", timeout_s=10)
        assert (result.exited, result.output) == (3, "one\ntwo\nthree\n")

    def test_output_is_as_the_command_wrote_it(self, shell: Shell) -> None:
        for text in ("", "no end", "\n", "\n\nline\n\n", "gpurun-begin-\ngpurun-end-"):
            assert shell.run("cat", timeout_s=10, stdin=text).output == text

    def test_commands_run_in_the_root_directory(self, shell: Shell, root: str) -> None:
        assert shell.run("pwd", timeout_s=10).output == f"{root}\n"

    def test_a_command_of_many_lines_and_quotes_is_one_command(self, shell: Shell) -> None:
        text = """if :; then\n  printf '%s|' "it's" '"$HOME"' \\\\ '!'\nfi\n# done\nexit 4"""
        result = shell.run(text, timeout_s=10)
        assert (result.exited, result.output) == (4, """it's|"$HOME"|\\|!|""")

    def test_a_command_of_90_kb_is_run(self, shell: Shell) -> None:
        assert shell.run(f": {'x' * 90_000}; echo ran", timeout_s=10).output == "ran\n"

    def test_death_by_signal_is_told_as_sh_tells_it(self, shell: Shell) -> None:
        for number in (1, 2, 9, 15):
            result = shell.run(f"kill -{number} $$", timeout_s=10)
            assert (result.exited, result.output) == (128 + number, "")

    def test_a_command_may_signal_its_whole_group(self, shell: Shell) -> None:
        assert shell.run("kill -TERM 0; sleep 9", timeout_s=10).exited == 128 + 15

    def test_lines_are_told_as_they_come(self, shell: Shell) -> None:
        lines: list[str] = []

        def answer(line: str) -> None:
            lines.append(line)
            if line == "ready":  # the command waits for it: if lines were held back, for ever
                shell.run("echo go >go", timeout_s=10)

        text = "mkfifo go; echo ready; read -r word <go; echo got $word"
        assert shell.run(text, timeout_s=10, on_line=answer).ok
        assert lines == ["ready", "got go"]

    def test_a_carriage_return_ends_a_line_of_progress(self, shell: Shell) -> None:
        lines: list[str] = []
        shell.run(r"printf '10%%\r20%%\rdone\r\nlast'", timeout_s=10, on_line=lines.append)
        assert lines == ["10%", "20%", "done", "last"]

    def test_a_character_cut_by_the_pipe_is_whole_again(self, shell: Shell) -> None:
        result = shell.run(r"printf '\303'; sleep 0.1; printf '\244\377'", timeout_s=10)
        assert result.output == "ä\N{REPLACEMENT CHARACTER}"

    def test_stdin_is_passed_and_closed(self, shell: Shell) -> None:
        text = "x" * 3_000_000  # far more than a pipe holds
        assert shell.run("wc -c", timeout_s=30, stdin=text).output.strip() == "3000000"

    def test_a_command_that_does_not_read_its_stdin_is_fine(self, shell: Shell) -> None:
        assert shell.run("exit 5", timeout_s=10, stdin="x" * 3_000_000).exited == 5

    def test_a_command_that_answers_while_it_is_told_does_not_stall(self, shell: Shell) -> None:
        text = "line of text\n" * 300_000
        assert len(shell.run("cat; wc -c", timeout_s=30, stdin=text).output) == KEPT_CHARS

    def test_without_stdin_a_reader_gets_the_end_at_once(self, shell: Shell) -> None:
        assert shell.run("cat", timeout_s=10).ok

    def test_a_child_left_behind_does_not_keep_the_command(self, shell: Shell) -> None:
        result = shell.run("sleep 300 & echo $!", timeout_s=30)
        assert result.ok
        pid = int(result.output)
        assert shell.run(f"kill -0 {pid} && kill -9 {pid}", timeout_s=10).ok  # it lived

    def test_a_child_that_writes_for_ever_does_not_keep_it_either(self, shell: Shell) -> None:
        result = shell.run("yes & echo; sleep 0.1", timeout_s=30)
        assert result.ok
        assert "y" in result.output

    def test_a_command_that_closes_its_output_is_waited_for(self, shell: Shell) -> None:
        assert shell.run("exec >&- 2>&-; sleep 0.2; exit 4", timeout_s=30).exited == 4

    @pytest.mark.parametrize(
        "command",
        [
            "echo $$; exec sleep 300",
            "sleep 300 & echo $!; wait",
            "timeout 300 sleep 300 & echo $!; wait",  # timeout(1) makes a process group of its own
            "trap '' TERM INT HUP; echo $$; sleep 300; sleep 300",
            "(cp /bin/sleep 'a ) b'; ./a\\ \\)\\ b 300) & echo $!; wait",
        ],
    )
    def test_a_timeout_ends_what_the_command_started(self, shell: Shell, command: str) -> None:
        result = shell.run(command, timeout_s=0.5)
        assert result.exited == 124
        wait_for_end(shell, int(result.output))

    def test_what_was_said_before_a_timeout_is_kept(self, shell: Shell) -> None:
        lines: list[str] = []
        result = shell.run("echo said; printf half; sleep 300", timeout_s=0.5, on_line=lines.append)
        assert (result.exited, result.output, lines) == (124, "said\nhalf", ["said", "half"])

    def test_output_is_kept_from_its_end_and_bounded(self, shell: Shell) -> None:
        result = shell.run("seq 1 400000", timeout_s=30)
        assert len(result.output) == KEPT_CHARS
        assert result.output.endswith("399999\n400000\n")
        assert result.tail(1) == "400000"

    def test_a_line_without_end_is_told_in_parts(self, shell: Shell) -> None:
        parts: list[str] = []
        shell.run("head -c 8000000 /dev/zero | tr '\\0' x", timeout_s=30, on_line=parts.append)
        assert "".join(parts) == "x" * 8_000_000
        assert len(parts) > 1

    def test_if_the_listener_fails_the_command_is_ended(self, shell: Shell) -> None:
        pids: list[int] = []

        def refuse(line: str) -> None:
            pids.append(int(line))
            raise RuntimeError("no")

        with pytest.raises(RuntimeError, match="no"):
            shell.run("echo $$; exec sleep 300", timeout_s=30, on_line=refuse)
        wait_for_end(shell, pids[0])

    def test_commands_of_several_threads_do_not_mix(self, shell: Shell) -> None:
        outputs: dict[int, str] = {}

        def ask(number: int) -> None:
            outputs[number] = shell.run(f"echo {number}", timeout_s=30).output

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outputs == {number: f"{number}\n" for number in range(16)}

    def test_no_descriptor_is_left_open(self, shell: Shell) -> None:
        shell.run("true", timeout_s=10)
        before = len(os.listdir("/dev/fd"))  # noqa: PTH208
        for _ in range(20):
            shell.run("cat", timeout_s=10, stdin="text")
        assert len(os.listdir("/dev/fd")) == before  # noqa: PTH208

    def test_a_root_directory_that_is_gone_leaves_the_outcome_unknown(
        self, shell: Shell, root: str
    ) -> None:
        assert shell.run(f"rm -r {shlex.quote(root)}", timeout_s=10).ok
        result = shell.run("echo ran", timeout_s=10)
        assert result.exited == -1
        assert root in result.output
        assert "ran" not in result.output

    def test_files_are_put_and_got_whole(self, shell: Shell, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.write_bytes(os.urandom(70_001) + b"\0\r\n" * 1000)
        source.chmod(0o751)
        os.utime(source, (1_600_000_000, 1_600_000_000))
        shell.put(source, "deep/down/target")
        said = shell.run("stat -c '%s %Y %a' deep/down/*; ls -A deep/down", timeout_s=10)
        assert said.output == f"{source.stat().st_size} 1600000000 751\ntarget\n"
        shell.get("deep/down/target", tmp_path / "back/again")
        back = tmp_path / "back" / "again"
        assert back.read_bytes() == source.read_bytes()
        assert (back.stat().st_mode & 0o777, back.stat().st_mtime) == (0o751, 1_600_000_000)
        assert list(back.parent.iterdir()) == [back]

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_any_name_will_do(self, shell: Shell, tmp_path: Path, name: str) -> None:
        source = tmp_path / name
        source.write_text(name)
        shell.put(source, f"{name}/{name}")
        shell.get(f"{name}/{name}", tmp_path / "back" / name)
        assert (tmp_path / "back" / name).read_text() == name

    def test_an_empty_file_is_a_file(self, shell: Shell, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        shell.put(tmp_path / "empty", "empty")
        shell.get("empty", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == b""

    def test_a_copy_takes_the_place_of_an_older_one(self, shell: Shell, tmp_path: Path) -> None:
        for text in ("first, and longer", "second"):
            (tmp_path / "source").write_text(text)
            shell.put(tmp_path / "source", "target")
            shell.get("target", tmp_path / "back")
            assert (tmp_path / "back").read_text() == text

    def test_a_link_is_followed(self, shell: Shell, tmp_path: Path) -> None:
        shell.run("echo text >file; ln -s file link", timeout_s=10)
        shell.get("link", tmp_path / "back")
        assert (tmp_path / "back").read_text() == "text\n"
        assert not (tmp_path / "back").is_symlink()

    def test_a_copy_that_fails_leaves_the_good_file_alone(
        self, shell: Shell, tmp_path: Path
    ) -> None:
        good = tmp_path / "kept" / "good"
        good.parent.mkdir()
        good.write_text("good")
        shell.run("mkdir directory; mkfifo fifo", timeout_s=10)
        for source in ("missing", "directory"):
            with pytest.raises(OSError):
                shell.get(source, good)
        assert good.read_text() == "good"
        assert list(good.parent.iterdir()) == [good]

    def test_a_put_that_fails_leaves_the_good_file_alone(
        self, shell: Shell, tmp_path: Path
    ) -> None:
        source = tmp_path / "source"
        source.write_text("source")
        assert shell.run("mkdir directory; echo good >file", timeout_s=10).ok
        attempts: list[Callable[[], None]] = [
            lambda: shell.put(tmp_path / "missing", "file"),
            lambda: shell.put(tmp_path, "file"),
            lambda: shell.put(source, "directory"),
            lambda: shell.put(source, "file/below"),
        ]
        for attempt in attempts:
            with pytest.raises(OSError):
                attempt()
        said = shell.run("cat file; find . -mindepth 1 | sort", timeout_s=10)
        assert said.output == "good\n./directory\n./file\n"
