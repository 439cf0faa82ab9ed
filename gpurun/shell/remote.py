"""One command on a box, over a session channel of the kept connection.

Not by Fabric's `run`: that costs 12 ms, has no bytes for stdin, and leaves a command that timed
out running.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import paramiko

from gpurun.shell import TIMED_OUT
from gpurun.shell.envelope import Envelope, kill_command
from gpurun.shell.link import BROKEN, WINDOW_BYTES, Link
from gpurun.shell.trouble import LoginRefused, NoConnection, OutcomeUnknown, Why

READ_BYTES = WINDOW_BYTES  # all there can be: paramiko moves what a read leaves behind
SEND_BYTES = 1 << 15
NOISE_CHARS = 500
LOOKS = 4  # whether bytes still move is looked at this often while patience lasts


class Remote:
    """A command, told and heard until it has ended.

    hear       is given its output as it comes, both streams in one order
    say        what its stdin gets, then its end; None: /dev/null
    directory  where it runs; the box's root directory if none is named
    moved      counts the bytes that went either way
    timed_out  whether patience ended before it did
    """

    def __init__(
        self,
        link: Link,
        command: str,
        hear: Callable[[bytes], None],
        say: Iterable[bytes] | None = None,
        *,
        directory: str = "",
    ) -> None:
        self.moved = 0
        self.timed_out = False
        self._link = link
        self._hear = hear
        self._say = say
        self._directory = directory or link.login.root
        self._envelope = Envelope(
            command,
            self._directory,
            with_stdin=say is not None,
            make_directory=link.login.make_root,
        )
        self._misspoken: BaseException | None = None
        self._complaints = ""

    def perform(self, patience_s: float, *, while_it_moves: bool = False) -> int:
        """Its exit code, or 124 when patience ended and all that it started is killed.

        Patience is for the whole command, or `while_it_moves` for each next byte.
        NoConnection: it was not begun.  OutcomeUnknown: it was, or may have been.
        What `hear` and `say` raise is passed on, once the command is killed.
        """
        try:
            with self._link.session() as channel:
                with self._watched(channel, patience_s, while_it_moves):
                    self._converse(channel)
                told_all = channel.eof_received
                self._complaints = _complaints(channel)
            if self._misspoken is not None:
                raise self._misspoken
        except BaseException:  # nothing may run on unheard
            self.kill()
            raise
        return self._outcome(patience_s, told_all=told_all)

    def _outcome(self, patience_s: float, *, told_all: bool) -> int:
        envelope, name = self._envelope, self._link.login.name
        if envelope.code is not None:
            return envelope.code
        if envelope.nowhere:
            raise OutcomeUnknown(f"{self._directory} on {name} cannot be entered")
        if self.timed_out and envelope.pid is not None:
            if self.kill():
                return TIMED_OUT
            raise OutcomeUnknown(
                f"the command on {name} did not end within {patience_s:.0f} s, and could not be "
                "killed: the box does not answer"
            )
        if self.timed_out:
            raise OutcomeUnknown(
                f"{name} did not begin the command within {patience_s:.0f} s{self._noise()}"
            )
        if not told_all:
            raise OutcomeUnknown(f"the connection to {name} broke off; the outcome is unknown")
        if envelope.pid is None:
            raise LoginRefused(
                Why.NO_COMMANDS,
                f"the login {self._link.login.user} on {name} does not run commands"
                f"{self._noise()}. If its start-up files take the session over, let ~/.bashrc "
                "return at once unless the shell is interactive (Vast: `touch ~/.no_auto_tmux`)",
            )
        raise OutcomeUnknown(f"the command on {name} ended without a word of how")

    def _noise(self) -> str:
        noise = f"{self._envelope.noise}\n{self._complaints}".strip()[-NOISE_CHARS:]
        return f": it printed {noise!r}" if noise else ""

    def _converse(self, channel: paramiko.Channel) -> None:
        try:
            channel.exec_command(self._envelope.sent)
            if self._say is None:
                channel.shutdown_write()
        except BROKEN:
            return
        silent = self._say is not None
        while not self._envelope.ended and (data := _read(channel)):
            self.moved += len(data)
            out = self._envelope.opened(data)
            if silent and self._envelope.pid is not None:
                # Not before: a start-up file that reads would take what is the command's.
                threading.Thread(target=self._speak, args=(channel,), daemon=True).start()
                silent = False
            if out:
                self._hear(out)
        if not self._envelope.ended and (out := self._envelope.remainder()):
            self._hear(out)

    def _speak(self, channel: paramiko.Channel) -> None:
        assert self._say is not None
        try:
            for text in self._say:
                for at in range(0, len(text), SEND_BYTES):
                    if not _sent(channel, piece := text[at : at + SEND_BYTES]):
                        return  # it ended, or does not want more
                    self.moved += len(piece)
        except BaseException as error:  # raised again where the command is performed
            self._misspoken = error
            with suppress(*BROKEN):
                channel.close()
        with suppress(*BROKEN):
            channel.shutdown_write()

    @contextmanager
    def _watched(
        self, channel: paramiko.Channel, patience_s: float, while_it_moves: bool
    ) -> Iterator[None]:
        """Close the channel when patience ends, which wakes whoever waits on it."""
        done = threading.Event()
        looks = LOOKS if while_it_moves else 1

        def watch() -> None:
            seen, still = self.moved, 0
            while not done.wait(patience_s / looks):
                still = still + 1 if self.moved == seen or not while_it_moves else 0
                seen = self.moved
                if still == looks:
                    self.timed_out = True
                    with suppress(*BROKEN):
                        channel.close()
                    return

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            done.set()

    def kill(self) -> bool:
        """Kill all that it started, by another session; whether nothing of it is left."""
        if self._envelope.pid is None or self._envelope.ended:
            return True
        try:
            return self._killed()
        except NoConnection:
            if not self._link.alive:
                return False
        self._link.drop()  # alive, but it opens no second session
        with suppress(NoConnection):
            return self._killed()
        return False

    def _killed(self) -> bool:
        with self._link.extra_session() as channel:
            patience = threading.Timer(self._link.waits.channel_s, self._link.drop)
            patience.daemon = True
            patience.start()
            try:
                channel.exec_command(kill_command(self._envelope))
                while _read(channel):
                    pass
                return bool(channel.recv_exit_status() == 0)
            except BROKEN:
                return False
            finally:
                patience.cancel()


def _read(channel: paramiko.Channel) -> bytes:
    """What has come, at least a byte; nothing when nothing more will."""
    try:
        return bytes(channel.recv(READ_BYTES))
    except BROKEN:
        return b""


def _complaints(channel: paramiko.Channel) -> str:
    """What the login itself said on stderr; a command's own comes with its output."""
    said = channel.recv_stderr(READ_BYTES) if channel.recv_stderr_ready() else b""
    return str(said.decode(errors="replace").strip())


def _sent(channel: paramiko.Channel, piece: bytes) -> bool:
    try:
        channel.sendall(piece)
    except BROKEN:
        return False
    return True
