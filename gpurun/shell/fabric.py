"""A shell on a box over SSH: Fabric's connection on our own socket, everything else ours.

    connect.py   socket, login, and why not        pins.py    host keys, pinned at first contact
    link.py      the kept connection               keys.py    private keys, agent
    envelope.py  what goes around a command        remote.py  one command
    transfer.py  files, resumed where they stopped

Not used of Fabric: `run` (see remote.py) and SFTP.  Files go through `cat` and `tail` on the same
kind of channel as commands: twice as fast as SFTP with prefetch, half its CPU, nothing else needed
on the box.
"""

import weakref
from collections.abc import Callable
from pathlib import Path

from gpurun.provider import Login
from gpurun.shell import UNKNOWN_OUTCOME, Result, transfer
from gpurun.shell.connect import USUAL, Waits
from gpurun.shell.link import Link
from gpurun.shell.remote import Remote
from gpurun.shell.transcript import Transcript
from gpurun.shell.trouble import NoConnection, OutcomeUnknown


class FabricShell:
    """Commands and files over one kept connection, which is made anew when it breaks.

    `run` answers trouble of the network, of the login and of the box's directory with exit -1 and
    the reason as the last line: a caller that polls needs no other word.  One that must know what
    waiting cannot cure asks `connect`.  HostKeyChanged is raised everywhere: it stops a run.
    """

    def __init__(self, login: Login, known_hosts: Path, waits: Waits = USUAL) -> None:
        self._link = Link(login, known_hosts, waits)
        self._enter = f"{login.enter}\n" if login.enter else ""
        weakref.finalize(self, self._link.drop)

    def connect(self) -> None:
        """Log in and prove that commands run there; nothing to do if they just did.

        Unreachable: no SSH server answers, yet.  LoginRefused: one does, and does not let us work;
        its `ours` says that the fault is this machine's key.
        """
        Remote(self._link, ":", lambda _: None).perform(self._link.waits.channel_s)

    def run(
        self,
        command: str,
        *,
        timeout_s: float,
        stdin: str = "",
        on_line: Callable[[str], None] | None = None,
    ) -> Result:
        """As the port says.  Connecting, bounded by `Waits`, is not counted in the timeout."""
        transcript = Transcript(on_line)
        say = [stdin.encode(errors="surrogateescape")] if stdin else None
        try:
            exited = Remote(self._link, self._enter + command, transcript.take, say).perform(
                timeout_s
            )
        except (NoConnection, OutcomeUnknown) as error:
            transcript.finish()
            return Result(UNKNOWN_OUTCOME, _with_line(transcript.text(), str(error)))
        transcript.finish()
        return Result(exited, transcript.text())

    def put(self, source: Path, target: str) -> None:
        """As the port says; a connection that breaks is made anew, and the transfer goes on."""
        transfer.put(self._link, source, target)

    def get(self, source: str, target: Path) -> None:
        """As `put`; after a failure what has arrived waits beside `target` for the next try."""
        transfer.get(self._link, source, target)

    def close(self) -> None:
        """End the connection; a later command would make another."""
        self._link.drop()


def _with_line(text: str, line: str) -> str:
    return f"{text}{line}\n" if not text or text.endswith("\n") else f"{text}\n{line}\n"
