"""Files over connections that break: resumed where they stopped, whole, or not there at all."""

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gpurun.provider import Login
from gpurun.shell.connect import Waits
from gpurun.shell.fabric import FabricShell
from tests.boxes import Box, Proxy, Shape, box

pytestmark = pytest.mark.box

QUICK = Waits(connect_s=2, greeting_s=2, login_s=5, dead_s=2, channel_s=3, stall_s=4)
SIZE = 12_000_000
RATE = 8_000_000  # bytes per second, so that there is a middle in which to break it
WAYS = ["put", "get"]

Open = Callable[..., FabricShell]


@pytest.fixture
def rented() -> Iterator[Box]:
    with box() as made:
        yield made


@pytest.fixture
def open_shell(tmp_path: Path) -> Iterator[Open]:
    with ExitStack() as closing:

        def open_one(made: Box, *addresses: tuple[str, int]) -> FabricShell:
            at = addresses or ((made.host, made.port),)
            login = Login("box-1", made.user, at, "/workspace", made.key)
            shell = FabricShell(login, tmp_path / "known_hosts", QUICK)
            closing.callback(shell.close)
            return shell

        yield open_one


class Transfer:
    """A file and its copy, one of them on the box."""

    def __init__(self, way: str, made: Box, folder: Path) -> None:
        self._way = way
        self._made = made
        self._here = folder / "here"
        self._here.mkdir()
        self.content = b""
        self.wire_bytes_after = 0  # what went over the link after it was broken
        self.set(os.urandom(SIZE))

    @property
    def source(self) -> Path:
        return (self._there if self._way == "get" else self._here) / "source"

    @property
    def target(self) -> Path:
        return (self._here if self._way == "get" else self._there) / "target"

    @property
    def parts(self) -> list[Path]:
        return sorted(self.target.parent.glob(".*.part"))

    @property
    def _there(self) -> Path:
        return self._made.root / "workspace"

    def set(self, content: bytes) -> None:
        self.content = content
        self.source.write_bytes(content)

    def go(self, shell: FabricShell) -> None:
        if self._way == "get":
            shell.get("source", self.target)
        else:
            shell.put(self.source, "target")

    def wire_bytes(self) -> int:
        """What has gone over the box's link in the direction of the file."""
        counter = "rx_bytes" if self._way == "get" else "tx_bytes"
        return int(Path(f"/sys/class/net/{self._made.name}/statistics/{counter}").read_text())

    def whole(self) -> bool:
        return self.target.read_bytes() == self.content and self.parts == []

    def wait_for_the_middle(self) -> None:
        """Half of the file has arrived."""
        for _ in range(3000):
            if any(part.stat().st_size > SIZE // 2 for part in self.parts):
                return
            time.sleep(0.005)

    @contextmanager
    def broken_in_the_middle(self, breaks: Callable[[], None]) -> Iterator[None]:
        broken_at: list[int] = []

        def watch() -> None:
            self.wait_for_the_middle()
            breaks()
            broken_at.append(self.wire_bytes())

        thread = threading.Thread(target=watch)
        thread.start()
        yield
        thread.join()
        self.wire_bytes_after = self.wire_bytes() - broken_at[0]


@pytest.fixture(params=WAYS)
def transfer(request: pytest.FixtureRequest, rented: Box, tmp_path: Path) -> Transfer:
    return Transfer(request.param, rented, tmp_path)


@pytest.fixture
def slow(rented: Box) -> Iterator[Proxy]:
    """A line to the box on which a file takes two seconds."""
    with Proxy(rented.host, rented.port, bytes_per_s=RATE) as proxy:
        yield proxy


@pytest.mark.parametrize("fault", ["reset", "cut"])
def test_a_transfer_that_is_cut_goes_on_where_it_stopped(
    fault: str, transfer: Transfer, slow: Proxy, rented: Box, open_shell: Open
) -> None:
    def breaks() -> None:
        if fault == "reset":
            slow.reset()
            return
        rented.cut()  # the box's side does not notice, its command waits for more
        slow.reset()
        time.sleep(1)
        rented.heal()

    with transfer.broken_in_the_middle(breaks):
        transfer.go(open_shell(rented, (slow.host, slow.port)))
    assert transfer.whole()
    assert transfer.wire_bytes_after < 0.7 * SIZE
    running = rented.sh('for f in /proc/[0-9]*/comm; do read -r name <"$f"; echo "$name"; done')
    assert not {"cat", "tail"} & set(running.split())


def test_a_later_call_goes_on_where_an_earlier_one_stopped(
    transfer: Transfer, slow: Proxy, rented: Box, open_shell: Open
) -> None:
    def breaks() -> None:
        slow.refuse()
        slow.reset()

    with transfer.broken_in_the_middle(breaks), pytest.raises(OSError):
        transfer.go(open_shell(rented, (slow.host, slow.port)))
    assert len(transfer.parts) == 1
    assert not transfer.target.exists()
    slow.accept()
    before = transfer.wire_bytes()
    transfer.go(open_shell(rented, (slow.host, slow.port)))
    assert transfer.whole()
    assert transfer.wire_bytes() - before < 0.7 * SIZE


def test_what_is_left_of_another_file_is_never_part_of_this_one(
    transfer: Transfer, slow: Proxy, rented: Box, open_shell: Open
) -> None:
    def breaks() -> None:
        slow.refuse()
        slow.reset()

    with transfer.broken_in_the_middle(breaks), pytest.raises(OSError):
        transfer.go(open_shell(rented, (slow.host, slow.port)))
    [part] = transfer.parts
    transfer.set(os.urandom(SIZE))
    transfer.go(open_shell(rented))
    assert transfer.target.read_bytes() == transfer.content
    assert transfer.parts in ([], [part])


def test_a_part_that_was_damaged_is_sent_anew(
    transfer: Transfer, slow: Proxy, rented: Box, open_shell: Open
) -> None:
    def breaks() -> None:
        slow.refuse()
        slow.reset()

    with transfer.broken_in_the_middle(breaks), pytest.raises(OSError):
        transfer.go(open_shell(rented, (slow.host, slow.port)))
    [part] = transfer.parts
    for damaged in (b"x" * 1000, b"x" * (SIZE + 1000)):
        part.write_bytes(damaged)
        transfer.go(open_shell(rented))
        assert transfer.whole()


def test_a_transfer_that_stands_still_ends_and_harms_nothing(
    transfer: Transfer, slow: Proxy, rented: Box, open_shell: Open
) -> None:
    def breaks() -> None:
        slow.cut()  # what waits in it would still arrive
        rented.freeze()

    transfer.target.write_text("good")
    began_s = time.monotonic()
    with transfer.broken_in_the_middle(breaks), pytest.raises(OSError):
        transfer.go(open_shell(rented, (slow.host, slow.port)))
    assert time.monotonic() - began_s < 5 * QUICK.stall_s
    rented.thaw()
    assert transfer.target.read_text() == "good"


def test_a_box_that_is_not_there_is_not_waited_for(
    transfer: Transfer, rented: Box, open_shell: Open
) -> None:
    rented.refuse()
    began_s = time.monotonic()
    with pytest.raises(OSError, match="nothing listens"):
        transfer.go(open_shell(rented))
    assert time.monotonic() - began_s < QUICK.stall_s


def test_one_packet_in_fifty_may_be_lost(transfer: Transfer, rented: Box, open_shell: Open) -> None:
    rented.loss(2)
    transfer.go(open_shell(rented))
    assert transfer.whole()


@pytest.mark.parametrize("way", WAYS)
def test_a_box_without_sha256sum_will_do(way: str, tmp_path: Path, open_shell: Open) -> None:
    with (
        box(Shape(without=("sha256sum",))) as made,
        Proxy(made.host, made.port, bytes_per_s=RATE) as proxy,
    ):
        transfer = Transfer(way, made, tmp_path)
        with transfer.broken_in_the_middle(proxy.reset):
            transfer.go(open_shell(made, (proxy.host, proxy.port)))
        assert transfer.whole()


def test_a_full_disk_is_told_and_leaves_no_part(
    rented: Box, open_shell: Open, tmp_path: Path
) -> None:
    transfer = Transfer("put", rented, tmp_path)
    transfer.target.write_text("good")
    rented.fill_disk(left_kib=4000)
    with pytest.raises(OSError, match="No space left on device"):
        transfer.go(open_shell(rented))
    assert transfer.target.read_text() == "good"
    assert transfer.parts == []


def test_a_log_that_grows_is_got_as_it_was_when_asked_for(
    rented: Box, open_shell: Open, tmp_path: Path
) -> None:
    shell = open_shell(rented)
    text = "i=0; while :; do i=$((i+1)); echo $i; done >log & echo $!; sleep 0.3"
    writer = shell.run(text, timeout_s=10).output.strip()
    try:
        for _ in range(3):
            shell.get("log", tmp_path / "log")
            lines = (tmp_path / "log").read_text().split("\n")
            assert lines[:-1] == [str(n) for n in range(1, len(lines))]
    finally:
        shell.run(f"kill {writer}", timeout_s=10)


def test_a_box_that_talks_nonsense_of_a_file_is_not_believed(
    rented: Box, open_shell: Open, tmp_path: Path
) -> None:
    shell = open_shell(rented)
    shell.run("echo text >file", timeout_s=10)
    for said in ("echo so much", "echo 9 9 999; printf 12", "echo -1 5 644", "printf 5"):
        rented.install("stat", f"#!/bin/sh\n{said}\nexit 1\n")
        with pytest.raises(OSError):
            shell.get("file", tmp_path / "file")
        assert not (tmp_path / "file").exists()


def test_two_processes_do_not_fetch_one_file_into_each_other(
    rented: Box, slow: Proxy, open_shell: Open, tmp_path: Path
) -> None:
    transfer = Transfer("get", rented, tmp_path)
    program = """
import sys
from pathlib import Path
from gpurun.provider import Login
from gpurun.shell.fabric import FabricShell
port, key, known_hosts, target = sys.argv[1:]
login = Login("box-1", "root", (("127.0.0.1", int(port)),), "/workspace", Path(key))
FabricShell(login, Path(known_hosts)).get("source", Path(target))
"""
    arguments = (slow.port, rented.key, tmp_path / "known_hosts", transfer.target)
    command = [sys.executable, "-c", program, *map(str, arguments)]
    with subprocess.Popen(command) as other:
        transfer.wait_for_the_middle()
        with pytest.raises(OSError) as raised:
            transfer.go(open_shell(rented))
        assert raised.value.errno == errno.EBUSY
        assert other.wait(30) == 0
    assert transfer.whole()


def test_a_file_that_becomes_shorter_while_it_is_sent_does_not_arrive(
    rented: Box, slow: Proxy, open_shell: Open, tmp_path: Path
) -> None:
    transfer = Transfer("put", rented, tmp_path)

    def shorten() -> None:
        os.truncate(transfer.source, SIZE // 2)

    with transfer.broken_in_the_middle(shorten), pytest.raises(OSError, match="shorter"):
        transfer.go(open_shell(rented, (slow.host, slow.port)))
    assert not transfer.target.exists()
