"""The one kept connection to a box: made when it is needed, made again when it is dead."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import fabric
import paramiko

from gpurun.clock import Deadline
from gpurun.provider import Login
from gpurun.shell.connect import Waits, connect
from gpurun.shell.pins import Pins
from gpurun.shell.trouble import LoginRefused, NoConnection, Unreachable, Why

SESSIONS = 8  # at one time: sshd allows 10 on a connection, and a kill needs one
WINDOW_BYTES = 1 << 23  # what the box may send ahead: 80 MB/s at a round trip of 100 ms
PACKET_BYTES = 1 << 17
BUSY_POLL_S = 0.05

BROKEN = (paramiko.SSHException, EOFError, OSError)


class Link:
    """Session channels on a kept connection.  Threads share it."""

    def __init__(self, login: Login, known_hosts: Path, waits: Waits) -> None:
        self.login = login
        self.waits = waits
        self._pins = Pins(known_hosts, login.name)
        self._addresses = list(login.addresses)
        self._making = threading.Lock()
        self._room = threading.BoundedSemaphore(SESSIONS)
        self._kept: _Kept | None = None

    @property
    def alive(self) -> bool:
        """Whether the kept connection still stands, as far as this machine knows."""
        kept = self._kept
        return kept is not None and kept.alive

    @contextmanager
    def session(self) -> Iterator[paramiko.Channel]:
        """A channel for one command; of more than SESSIONS the last ones wait.

        NoConnection: nothing was sent.  HostKeyChanged: another machine answers.
        """
        with self._room, self._open(Deadline(self.waits.channel_s, BUSY_POLL_S)) as channel:
            yield channel

    @contextmanager
    def extra_session(self) -> Iterator[paramiko.Channel]:
        """A channel at once, however many there are."""
        with self._open(Deadline(0)) as channel:
            yield channel

    def drop(self) -> None:
        """End the connection now, whatever waits on it; the next command makes another."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.end()

    @contextmanager
    def _open(self, busy: Deadline) -> Iterator[paramiko.Channel]:
        channel = self._channel(busy)
        try:
            yield channel
        finally:
            with suppress(*BROKEN):
                channel.close()

    def _channel(self, busy: Deadline) -> paramiko.Channel:
        """While the box is busy ending other sessions it opens none; that passes."""
        while True:
            refused = busy.passed()
            try:
                return self._opened()
            except paramiko.ChannelException as error:
                if refused:
                    raise Unreachable(
                        Why.NO_ANSWER, f"{self.login.name} opens no further session: {error.text}"
                    ) from error

    def _opened(self) -> paramiko.Channel:
        """A connection that is dead without our knowing shows it here: then on a new one."""
        for _ in ("on the kept one", "on a new one"):
            kept = self._connected()
            try:
                return kept.channel(self.waits.channel_s)
            except paramiko.ChannelException:
                raise
            except BROKEN as error:
                why = error
                self._forget(kept)
        raise Unreachable(Why.CUT, f"{self.login.name} opens no session: {why}") from why

    def _forget(self, kept: "_Kept") -> None:
        if self._kept is kept:
            self._kept = None
        kept.end()

    def _connected(self) -> "_Kept":
        with self._making:
            if (kept := self._kept) is not None:
                if kept.alive:
                    return kept
                self._forget(kept)
            self._kept = made = self._connect()
            return made

    def _connect(self) -> "_Kept":
        """By the address that worked last, else by the others in their order."""
        failures: list[NoConnection] = []
        for address in list(self._addresses):
            try:
                made = _Kept(*connect(self.login, address, self._pins, self.waits))
            except NoConnection as failure:
                failures.append(failure)
                continue
            self._addresses.remove(address)
            self._addresses.insert(0, address)
            return made
        told = [failure for failure in failures if isinstance(failure, LoginRefused)] or failures
        if not told:
            raise Unreachable(Why.UNKNOWN_HOST, f"{self.login.name} has no address yet")
        raise type(told[0])(told[0].why, "; ".join(dict.fromkeys(map(str, told))))


class _Kept:
    """One connection and the socket under it."""

    def __init__(self, connection: fabric.Connection, sock: socket.socket) -> None:
        self._connection = connection
        self._sock = sock

    @property
    def alive(self) -> bool:
        return bool(self._connection.is_connected)

    def channel(self, within_s: float) -> paramiko.Channel:
        return self._connection.transport.open_session(
            window_size=WINDOW_BYTES, max_packet_size=PACKET_BYTES, timeout=within_s
        )

    def end(self) -> None:
        with suppress(OSError):  # wakes paramiko's thread, which would sleep on
            self._sock.shutdown(socket.SHUT_RDWR)
        with suppress(*BROKEN):
            self._connection.client.close()
