"""Logging in to a box: host keys that are pinned, private keys that fit or do not, and why not."""

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gpurun.errors import PhaseFailed
from gpurun.provider import Login
from gpurun.shell.connect import Waits
from gpurun.shell.fabric import FabricShell
from gpurun.shell.trouble import HostKeyChanged, LoginRefused, NoConnection, Unreachable, Why
from tests.boxes import Box, Shape, box, make_key, ssh_agent

pytestmark = pytest.mark.box

QUICK = Waits(connect_s=1, greeting_s=1, login_s=5, dead_s=2, channel_s=3, stall_s=6)

Open = Callable[[Login], FabricShell]


@pytest.fixture(scope="module")
def shared() -> Iterator[Box]:
    with box() as made:
        yield made


@pytest.fixture
def rented() -> Iterator[Box]:
    with box() as made:
        yield made


@pytest.fixture
def open_shell(tmp_path: Path) -> Iterator[Open]:
    with ExitStack() as closing:

        def open_one(login: Login) -> FabricShell:
            shell = FabricShell(login, tmp_path / "state" / "known_hosts", QUICK)
            closing.callback(shell.close)
            return shell

        yield open_one


def login(made: Box, key: Path | None = None, *, user: str = "root", port: int = 22) -> Login:
    return Login("box-1", user, ((made.host, port),), "/workspace", key or made.key)


def refusal(shell: FabricShell) -> NoConnection:
    """Why it cannot be worked with; `run` says the same, as an outcome that is unknown."""
    with pytest.raises(NoConnection) as raised:
        shell.connect()
    result = shell.run("echo ran", timeout_s=5)
    assert (result.exited, result.output) == (-1, f"{raised.value}\n")
    return raised.value


# Host keys.


def test_the_host_key_is_pinned_at_first_contact_as_openssh_reads_it(
    shared: Box, open_shell: Open, tmp_path: Path
) -> None:
    open_shell(login(shared)).connect()
    pinned = tmp_path / "state" / "known_hosts" / "box-1"
    assert pinned.read_text() == f"box-1 {shared.host_key}\n"
    assert pinned.stat().st_mode & 0o777 == 0o600
    assert pinned.parent.stat().st_mode & 0o777 == 0o700
    strict = ["StrictHostKeyChecking=yes", "HostKeyAlias=box-1", f"UserKnownHostsFile={pinned}"]
    strict += ["KexAlgorithms=curve25519-sha256", "BatchMode=yes"]
    options = [word for option in strict for word in ("-o", option)]
    asked = ["ssh", "-F", "none", *options, "-i", str(shared.key), f"root@{shared.host}", "true"]
    assert subprocess.run(asked, capture_output=True, timeout=20).returncode == 0


def test_first_contact_by_several_at_once_pins_once(
    shared: Box, open_shell: Open, tmp_path: Path
) -> None:
    shells = [open_shell(login(shared)) for _ in range(6)]
    threads = [threading.Thread(target=shell.connect) for shell in shells]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(shell.run("true", timeout_s=10).ok for shell in shells)
    folder = tmp_path / "state" / "known_hosts"
    assert [path.name for path in folder.iterdir()] == ["box-1"]
    assert len((folder / "box-1").read_text().splitlines()) == 1


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_another_host_key_stops_everything(
    kind: str, rented: Box, open_shell: Open, tmp_path: Path
) -> None:
    shell = open_shell(login(rented))
    assert shell.run("echo before >file", timeout_s=10).ok
    before = _fingerprint(rented)
    rented.sh(f"cd /etc/ssh; rm box_host_key; ssh-keygen -q -t {kind} -N '' -f box_host_key")
    rented.restart()
    source = tmp_path / "source"
    source.write_text("text")
    attempts: list[Callable[[], object]] = [
        shell.connect,
        lambda: shell.run("echo after >file", timeout_s=10),
        lambda: shell.put(source, "file"),
        lambda: shell.get("file", tmp_path / "back"),
    ]
    for attempt in attempts:
        with pytest.raises(HostKeyChanged) as raised:
            attempt()
    assert isinstance(raised.value, PhaseFailed)
    pinned = tmp_path / "state" / "known_hosts" / "box-1"
    for part in ("box-1", before, _fingerprint(rented), f"`rm {pinned}`"):
        assert part in str(raised.value)
    assert rented.sh("cat /workspace/file") == "before\n"
    assert "Accepted publickey" not in rented.log().rpartition("Server listening")[2]
    pinned.unlink()
    assert shell.run("cat file", timeout_s=10).output == "before\n"


def test_a_pin_that_is_damaged_admits_nobody(shared: Box, open_shell: Open, tmp_path: Path) -> None:
    pinned = tmp_path / "state" / "known_hosts" / "box-1"
    pinned.parent.mkdir(parents=True)
    for text in ("", "garbage\n", f"box-2 {shared.host_key}\n"):
        pinned.write_text(text)
        with pytest.raises(HostKeyChanged, match="unreadable"):
            open_shell(login(shared)).connect()


def _fingerprint(made: Box) -> str:
    return made.sh("ssh-keygen -l -f /etc/ssh/box_host_key").split()[1]


# Private keys.


@pytest.mark.parametrize("options", [[], ["-m", "PEM", "-t", "rsa"], ["-t", "ecdsa"]])
def test_a_key_with_a_passphrase_works_through_the_agent(
    options: list[str], rented: Box, open_shell: Open, tmp_path: Path, monkeypatch
) -> None:
    key = tmp_path / "key"
    kind = options or ["-t", "ed25519"]
    subprocess.run(["ssh-keygen", "-q", *kind, "-N", "open sesame", "-f", str(key)], check=True)
    rented.authorise(key)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    refused = refusal(open_shell(login(rented, key)))
    assert isinstance(refused, LoginRefused)
    assert (refused.why, refused.ours) == (Why.KEY_LOCKED, True)
    assert f"`ssh-add {key}`" in str(refused)
    with ssh_agent(tmp_path) as agent:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent.socket))
        for number in range(8):  # more than sshd lets one try
            agent.add(make_key(tmp_path / f"other{number}"))
        assert refusal(open_shell(login(rented, key))).why is Why.KEY_LOCKED
        agent.add(key, "open sesame")
        assert open_shell(login(rented, key)).run("echo in", timeout_s=10).output == "in\n"


def test_without_a_named_key_the_agent_and_the_users_own_are_tried(
    rented: Box, open_shell: Open, tmp_path: Path, monkeypatch
) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    anyone = Login("box-1", "root", ((rented.host, 22),), "/workspace")
    nothing = refusal(open_shell(anyone))
    assert nothing.why is Why.NOT_ADMITTED
    with ssh_agent(tmp_path) as agent:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent.socket))
        agent.add(rented.key)
        assert open_shell(anyone).run("echo in", timeout_s=10).output == "in\n"
    monkeypatch.delenv("SSH_AUTH_SOCK")
    own = make_key(home / ".ssh" / "id_ed25519")
    assert refusal(open_shell(anyone)).why is Why.NOT_ADMITTED
    rented.authorise(own)
    assert open_shell(anyone).run("echo in", timeout_s=10).output == "in\n"
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-P", "", "-N", "sesame", "-f", str(own)],
        check=True,
        capture_output=True,
    )
    locked = refusal(open_shell(anyone))
    assert locked.why is Why.KEY_LOCKED
    assert "ssh-add" in str(locked)


def test_a_key_file_that_cannot_be_used_is_told_before_anything_is_sent(
    rented: Box, open_shell: Open, tmp_path: Path
) -> None:
    exposed = make_key(tmp_path / "exposed")
    exposed.chmod(0o644)
    (tmp_path / "garbage").write_text("no key\n")
    (tmp_path / "garbage").chmod(0o600)
    (tmp_path / "public").write_text(Path(f"{exposed}.pub").read_text())
    (tmp_path / "public").chmod(0o600)
    for name, why, says in (
        ("missing", Why.KEY_MISSING, "ssh-keygen -t ed25519 -f"),
        ("exposed", Why.KEY_EXPOSED, "chmod 600"),
        ("garbage", Why.KEY_UNREADABLE, "ssh-keygen -y -f"),
        ("public", Why.KEY_UNREADABLE, "ssh-keygen -y -f"),
        ("", Why.KEY_UNREADABLE, "ls -l"),  # a folder
    ):
        refused = refusal(open_shell(login(rented, tmp_path / name)))
        assert isinstance(refused, LoginRefused)
        assert (refused.why, refused.ours) == (why, True)
        assert says in str(refused)
        assert str(tmp_path / name) in str(refused)


def test_a_key_that_arrives_late_is_no_fault_of_ours(rented: Box, open_shell: Open) -> None:
    rented.authorise_nobody()
    shell = open_shell(login(rented))
    refused = refusal(shell)
    assert isinstance(refused, LoginRefused)
    assert (refused.why, refused.ours) == (Why.NOT_ADMITTED, False)
    assert f"`ssh -i {rented.key} -p 22 root@{rented.host}`" in str(refused)
    rented.authorise(rented.state / "key")
    assert shell.run("echo in", timeout_s=10).output == "in\n"


def test_a_user_who_is_not_there_and_a_box_of_passwords_refuse_alike(open_shell: Open) -> None:
    with box(Shape(passwords=True)) as made:
        assert refusal(open_shell(login(made, user="nobody-here"))).why is Why.NOT_ADMITTED
        made.authorise_nobody()
        assert refusal(open_shell(login(made))).why is Why.NOT_ADMITTED


# No SSH server.


@contextmanager
def server(answer: Callable[[socket.socket], object]) -> Iterator[Login]:
    """A server on loopback that does this with each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Login("box-1", "root", (listening.getsockname(),), "/", None)
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_what_is_no_ssh_server_is_told_from_one_that_is_busy(open_shell: Open) -> None:
    answers: list[tuple[Callable[[socket.socket], object], Why, str]] = [
        (lambda c: None, Why.CUT, "busy or starting"),
        (lambda c: c.sendall(b"220 mail ready\r\n"), Why.NOT_SSH, "220 mail ready"),
        (lambda c: c.sendall(b"Exceeded MaxStartups\r\n"), Why.NOT_SSH, "Exceeded MaxStartups"),
        (lambda c: c.recv(100), Why.NO_ANSWER, "says nothing"),
        (lambda c: c.sendall(b"SSH-2.0-x\r\n"), Why.CUT, "during the login"),
        (lambda c: c.sendall(b"SSH-1.5-old\r\n"), Why.CUT, "during the login"),
    ]
    for answer, why, says in answers:
        with server(answer) as nobody:
            with pytest.raises(Unreachable, match=says) as raised:
                open_shell(nobody).connect()
            assert raised.value.why is why


def test_an_address_where_nobody_is_has_one_clear_sentence(rented: Box, open_shell: Open) -> None:
    for made, why, says in (
        (login(rented, port=23), Why.PORT_CLOSED, "nothing listens at"),
        (Login("b", "root", (("no-such-host.invalid", 22),), "/"), Why.UNKNOWN_HOST, "looked up"),
        (Login("b", "root", (("a..b", 22),), "/"), Why.UNKNOWN_HOST, "looked up"),
        (Login("b", "root", (), "/"), Why.UNKNOWN_HOST, "no address yet"),
    ):
        refused = refusal(open_shell(made))
        assert isinstance(refused, Unreachable)
        assert refused.why is why
        assert says in str(refused)
    rented.cut()
    assert refusal(open_shell(login(rented))).why is Why.NO_ANSWER


def test_of_several_addresses_each_says_why(rented: Box, open_shell: Open) -> None:
    two = Login("box-1", "root", ((rented.host, 23), (rented.host, 24)), "/", rented.key)
    assert str(refusal(open_shell(two))).count("nothing listens") == 2
    rented.authorise_nobody()
    mixed = Login("box-1", "root", ((rented.host, 23), (rented.host, 22)), "/", rented.key)
    refused = refusal(open_shell(mixed))
    assert refused.why is Why.NOT_ADMITTED  # it says more than a closed port does


def test_a_name_that_is_no_file_name_is_refused(shared: Box, tmp_path: Path) -> None:
    for name in ("../x", "", ".hidden", "a/b", "x" * 300):
        with pytest.raises(ValueError):
            FabricShell(Login(name, "root", ((shared.host, 22),), "/"), tmp_path)
    assert os.listdir(tmp_path) == []  # noqa: PTH208
