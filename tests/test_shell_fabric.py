"""FabricShell on real boxes: the shells' contract, and connections and logins that fail."""

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from gpurun.errors import UsageError
from gpurun.provider import Login
from gpurun.shell import Result
from gpurun.shell.connect import Waits
from gpurun.shell.envelope import Envelope, kill_command
from gpurun.shell.fabric import FabricShell
from gpurun.shell.trouble import LoginRefused, Unreachable, Why
from tests.boxes import Box, Proxy, box, shape
from tests.shells import ShellContract, wait_for_end

pytestmark = pytest.mark.box

# Short, so that a dead peer is noticed while a test waits for it.
QUICK = Waits(connect_s=2, greeting_s=2, login_s=5, dead_s=2, channel_s=3, stall_s=6)
BOUND_S = 15.0  # of everything that has no answer, under QUICK

Open = Callable[..., FabricShell]


@pytest.fixture(scope="module")
def shared() -> Iterator[Box]:
    """For tests that break nothing."""
    with box() as made:
        yield made


@pytest.fixture
def rented() -> Iterator[Box]:
    with box() as made:
        yield made


@pytest.fixture
def open_shell(tmp_path: Path) -> Iterator[Open]:
    """Opens shells of a box, by its own address or by others, and closes them in the end."""
    with ExitStack() as closing:

        def open_one(made: Box, *addresses: tuple[str, int], root: str = "/workspace"):
            at = addresses or ((made.host, made.port),)
            login = Login("box-1", made.user, at, root, made.key)
            shell = FabricShell(login, tmp_path / "known_hosts", QUICK)
            closing.callback(shell.close)
            return shell

        yield open_one


class TestFabricShell(ShellContract):
    numbers = itertools.count()

    @pytest.fixture
    def root(self, shared: Box) -> str:
        path = f"/workspace/it's {next(self.numbers)}"
        shared.run(["mkdir", path])
        return path

    @pytest.fixture
    def shell(self, shared: Box, root: str, open_shell: Open) -> FabricShell:
        return open_shell(shared, root=root)


def run_and_break(shell: FabricShell, breaks: Callable[[], None]) -> Result:
    """A command under which something happens; its result must come soon."""
    began_s = time.monotonic()
    result = shell.run("echo begun; sleep 60", timeout_s=50, on_line=lambda _: breaks())
    assert time.monotonic() - began_s < BOUND_S
    return result


# A connection that breaks.


def test_a_cut_in_a_command_leaves_its_outcome_unknown(rented: Box, open_shell: Open) -> None:
    shell = open_shell(rented)
    result = run_and_break(shell, rented.cut)
    assert result.exited == -1
    assert result.output.startswith("begun\n")
    assert "outcome is unknown" in result.tail(1)
    rented.heal()
    assert shell.run("echo back", timeout_s=10).output == "back\n"


def test_a_short_cut_is_not_noticed(rented: Box, open_shell: Open) -> None:
    shell = open_shell(rented)

    def blink(_: str) -> None:
        rented.cut()
        time.sleep(0.5)
        rented.heal()

    result = shell.run("echo begun; sleep 1; echo done", timeout_s=20, on_line=blink)
    assert result == Result(0, "begun\ndone\n")


def test_a_reset_leaves_the_outcome_unknown_at_once(rented: Box, open_shell: Open) -> None:
    shell = open_shell(rented)
    began_s = time.monotonic()
    assert run_and_break(shell, rented.reset_connections).exited == -1
    assert time.monotonic() - began_s < QUICK.dead_s
    assert shell.run("echo back", timeout_s=10).output == "back\n"


def test_a_connection_that_died_idle_is_made_anew(rented: Box, open_shell: Open) -> None:
    shell = open_shell(rented)
    for breaks in (rented.reset_connections, rented.restart, rented.reboot):
        assert shell.run("echo one", timeout_s=10).ok
        breaks()
        assert shell.run("echo two", timeout_s=10).output == "two\n"


def test_a_silent_death_of_an_idle_connection_costs_no_command(
    rented: Box, open_shell: Open
) -> None:
    """As behind a NAT that forgets: the box no longer knows the connection, and says nothing."""
    with Proxy(rented.host, rented.port) as proxy:
        shell = open_shell(rented, (proxy.host, proxy.port), (rented.host, rented.port))
        assert shell.run("true", timeout_s=10).ok
        proxy.cut()  # on it, nothing is answered any more; new ones hang too
        assert shell.run("echo back", timeout_s=10).output == "back\n"


def test_a_reboot_in_a_command_leaves_its_outcome_unknown(rented: Box, open_shell: Open) -> None:
    shell = open_shell(rented)
    assert shell.run("echo kept >file", timeout_s=10).ok
    assert run_and_break(shell, rented.reboot).exited == -1
    assert shell.run("cat file", timeout_s=10).output == "kept\n"


def test_one_packet_in_ten_may_be_lost(rented: Box, open_shell: Open, tmp_path: Path) -> None:
    patient = replace(QUICK, connect_s=20, greeting_s=20, login_s=20, dead_s=20, channel_s=20)
    login = Login("box-1", rented.user, ((rented.host, rented.port),), "/workspace", rented.key)
    shell = FabricShell(login, tmp_path / "known_hosts", patient)
    rented.loss(10)
    for number in range(20):
        assert shell.run(f"echo {number}", timeout_s=60).output == f"{number}\n"
    shell.close()


def test_a_slow_line_costs_a_command_two_round_trips(shared: Box, open_shell: Open) -> None:
    with Proxy(shared.host, shared.port) as proxy:
        shell = open_shell(shared, (proxy.host, proxy.port))
        shell.connect()
        proxy.latency_s = 0.2
        began_s = time.monotonic()
        assert shell.run("echo far", timeout_s=10).output == "far\n"
        assert time.monotonic() - began_s < 2.7 * 0.4  # a third one would be 1.2 s


def test_a_frozen_box_does_not_hold_us(rented: Box, open_shell: Open) -> None:
    shell = open_shell(rented)
    began_s = time.monotonic()
    result = shell.run("echo begun; sleep 60", timeout_s=2, on_line=lambda _: rented.freeze())
    assert result.exited == -1
    assert "could not be killed" in result.tail(1)
    assert shell.run("echo anew", timeout_s=2).exited == -1
    assert time.monotonic() - began_s < 2 * BOUND_S
    with pytest.raises(Unreachable, match="says nothing") as raised:
        shell.connect()
    assert raised.value.why is Why.NO_ANSWER
    rented.thaw()
    assert shell.run("echo thawed", timeout_s=10).output == "thawed\n"


def test_a_box_that_refuses_for_a_while_is_reached_afterwards(
    rented: Box, open_shell: Open
) -> None:
    shell = open_shell(rented)
    rented.refuse()
    with pytest.raises(Unreachable) as raised:
        shell.connect()
    assert raised.value.why is Why.PORT_CLOSED
    assert shell.run("true", timeout_s=10).exited == -1
    rented.accept()
    assert shell.run("true", timeout_s=10).ok


def test_the_address_that_worked_is_the_first_next_time(shared: Box, open_shell: Open) -> None:
    there = (shared.host, shared.port)
    with Proxy(*there) as direct, Proxy(*there) as proxied:
        shell = open_shell(shared, (direct.host, direct.port), (proxied.host, proxied.port))
        direct.refuse()
        assert shell.run("true", timeout_s=10).ok
        direct.accept()
        proxied.reset()
        assert shell.run("true", timeout_s=10).ok
        assert (direct.connections, proxied.connections) == (0, 1)
        proxied.refuse()
        proxied.reset()
        assert shell.run("true", timeout_s=10).ok
        assert (direct.connections, proxied.connections) == (1, 0)


def test_nothing_is_printed_by_a_connection_that_breaks(
    rented: Box, open_shell: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    shell = open_shell(rented)
    run_and_break(shell, rented.reset_connections)
    rented.power_off()
    shell.run("true", timeout_s=10)
    assert capfd.readouterr() == ("", "")


# A login that does what it wants.


@pytest.mark.parametrize(
    "rc",
    [
        shape.PRINTING_RC,
        "printf 'no newline at its end'",
        "set -x",
        'echo "who are you?"; read -r line; echo "rc read: $line"',
        "cd /; alias sh=false; export PATH=$PATH; exec 3>&1",
        "yes | head -c 300000",
    ],
)
def test_start_up_files_may_print_and_read(rc: str, open_shell: Open) -> None:
    with box(shape.Shape(rc=f"{rc}\n")) as made:
        shell = open_shell(made)
        assert shell.run("pwd", timeout_s=10) == Result(0, "/workspace\n")
        heard = shell.run("cat", timeout_s=2 if "read -r" in rc else 10, stdin="a\nb\n")
        if "read -r" in rc:  # it waits for what is the command's, and must not get it
            assert heard.exited == -1
            assert "did not begin" in heard.output
        else:
            assert heard == Result(0, "a\nb\n")


def test_a_login_that_goes_to_tmux_is_found_out(open_shell: Open) -> None:
    with box(shape.Shape(rc=shape.TMUX_RC)) as made:
        shell = open_shell(made)
        result = shell.run("echo ran", timeout_s=10)
        assert result.exited == -1
        assert "does not run commands" in result.output
        assert "open terminal failed" in result.output
        with pytest.raises(LoginRefused, match="no_auto_tmux") as raised:
            shell.connect()
        assert raised.value.why is Why.NO_COMMANDS
        assert not raised.value.ours
        made.run(["touch", "/root/.no_auto_tmux"])
        assert shell.run("echo ran", timeout_s=10).output == "ran\n"


def test_a_login_that_hangs_is_left_after_the_timeout(open_shell: Open) -> None:
    with box(shape.Shape(rc="echo hold on; sleep 100\n")) as made:
        result = open_shell(made).run("echo ran", timeout_s=1)
        assert result.exited == -1
        assert "did not begin" in result.output
        assert "hold on" in result.output


def test_a_user_who_is_not_root_works_alike(open_shell: Open) -> None:
    with box(shape.UBUNTU_VM) as made:
        shell = open_shell(made, root="/home/ubuntu")
        assert shell.run("id -un; pwd", timeout_s=10).output == "ubuntu\n/home/ubuntu\n"
        result = shell.run("sudo sh -c 'echo $$; exec sleep 300'", timeout_s=1)
        assert result.exited == 124
        wait_for_end(shell, result.output.strip())


def test_one_session_at_a_time_is_enough_to_kill(rented: Box, open_shell: Open) -> None:
    rented.sh("sed -i 's/^MaxSessions.*/MaxSessions 1/' /etc/ssh/box.conf")
    rented.restart()
    shell = open_shell(rented)
    shell.run("true", timeout_s=10)
    result = shell.run("echo $$; exec sleep 300", timeout_s=1)
    assert result.exited == 124
    wait_for_end(shell, result.output.strip())


# What is killed, and what is not.


def test_what_made_a_session_of_its_own_outlives_a_timeout(shared: Box, open_shell: Open) -> None:
    shell = open_shell(shared)
    result = shell.run("setsid sleep 300 & sleep 0.2; echo $!; sleep 300", timeout_s=1)
    assert result.exited == 124
    assert shell.run(f"kill {result.output.strip()}", timeout_s=10).ok


@pytest.mark.parametrize("sh", [["dash"], ["bash", "--posix"], ["busybox", "sh"]])
def test_the_kill_ends_one_session_and_no_other(sh: list[str], tmp_path: Path) -> None:
    """A number alone proves nothing: after a reboot it may be the training's."""

    def session(*arguments: str) -> "subprocess.Popen[bytes]":
        text = "sleep 300 & sleep 300"
        return subprocess.Popen(["sh", "-c", text, *arguments], start_new_session=True)

    envelope = Envelope("true", "/", with_stdin=False)
    with session("gpurun", envelope.nonce) as ours, session("gpurun", "other") as another:
        try:
            for process in (another, ours):
                envelope.pid = process.pid
                script = tmp_path / "kill"
                script.write_text(kill_command(envelope).replace("exec sh", " ".join(sh), 1))
                assert subprocess.run(["sh", str(script)], timeout=10).returncode == 0
            assert ours.wait(10) == -signal.SIGKILL
            assert another.poll() is None
        finally:
            for process in (ours, another):
                os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None


def test_a_signal_that_unwinds_us_ends_the_command(shared: Box, open_shell: Open) -> None:
    class Unwind(BaseException):
        pass

    def unwind(number: int, frame: object) -> None:
        raise Unwind

    shell = open_shell(shared)
    lines: list[str] = []
    before = signal.signal(signal.SIGALRM, unwind)
    signal.setitimer(signal.ITIMER_REAL, 1)
    try:
        with pytest.raises(Unwind):
            shell.run("echo $$; exec sleep 300", timeout_s=60, on_line=lines.append)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    wait_for_end(shell, lines[0])


def test_a_command_too_long_for_a_box_is_not_sent(shared: Box, open_shell: Open) -> None:
    with pytest.raises(UsageError, match="put it into a script"):
        open_shell(shared).run("x" * 140_000, timeout_s=10)


def test_what_goes_by_stdin_is_in_no_command_line(shared: Box, open_shell: Open) -> None:
    shell = open_shell(shared)
    shown = shell.run("cat >/dev/null; cat /proc/[0-9]*/cmdline", timeout_s=10, stdin="hunter2")
    assert "gpurun" in shown.output
    assert "hunter2" not in shown.output


# Nothing is left behind here.


def test_a_shell_that_nobody_holds_closes_its_connection(shared: Box, tmp_path: Path) -> None:
    login = Login("box-1", shared.user, ((shared.host, shared.port),), "/workspace", shared.key)
    before = set(threading.enumerate())
    shell = FabricShell(login, tmp_path / "known_hosts", QUICK)
    shell.connect()
    [transport] = [t for t in set(threading.enumerate()) - before if type(t) is paramiko.Transport]
    del shell
    gc.collect()
    transport.join(2)
    assert not transport.is_alive()


def test_an_open_shell_does_not_keep_a_program_from_ending(shared: Box, tmp_path: Path) -> None:
    program = f"""
import threading
from pathlib import Path
from gpurun.provider import Login
from gpurun.shell.fabric import FabricShell
login = Login("box-1", "root", (({shared.host!r}, 22),), "/workspace", Path({str(shared.key)!r}))
shell = FabricShell(login, Path({str(tmp_path)!r}))
waits = threading.Thread(target=shell.run, args=("sleep 60",), kwargs=dict(timeout_s=60))
waits.daemon = True
waits.start()
print(shell.run("echo ran", timeout_s=10).output, end="")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=20
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ran\n", "")
