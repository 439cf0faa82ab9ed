"""A shell on this machine."""

import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from gpurun.shell import TIMED_OUT, UNKNOWN_OUTCOME, Result
from gpurun.shell.transcript import Transcript

PIPE_BYTES = 65_536
DRAINED_READS = 16  # 1 MiB, as much as a pipe can hold


class LocalShell:
    """A shell on this machine: commands run as `prefix sh -c command`, in the given environment.

    `prefix` enters the box, `alive` says whether there is one to enter: a command whose box is
    gone has an unknown outcome, as it has over a lost connection.
    """

    def __init__(
        self,
        root: Path,
        prefix: Sequence[str] = (),
        env: Mapping[str, str] = MappingProxyType({}),
        alive: Callable[[], bool] = lambda: True,
    ) -> None:
        self.root = root
        self._prefix = tuple(prefix)
        self._env = dict(env)
        self._alive = alive

    def run(
        self,
        command: str,
        *,
        timeout_s: float,
        stdin: str = "",
        on_line: Callable[[str], None] | None = None,
    ) -> Result:
        if not self._alive():
            return Result(UNKNOWN_OUTCOME, f"the box at {self.root} is gone\n")
        words, env = self.words(command)
        try:
            process = subprocess.Popen(
                words,
                cwd=self.root,
                env=env,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:  # the box's directory or what enters it went away
            return Result(UNKNOWN_OUTCOME, f"{error}\n")
        heard = Transcript(on_line)
        conversation = _Conversation(process, stdin, heard)
        # Asked again: whoever ended the box meanwhile may not have seen this process.
        exited = conversation.to_the_end(timeout_s if self._alive() else 0)
        if exited != 0 and not self._alive():
            exited = UNKNOWN_OUTCOME
        return Result(exited, heard.text())

    def words(self, command: str) -> tuple[tuple[str, ...], dict[str, str]]:
        """What a process is started with, in `root`, to run this inside the box."""
        return (*self._prefix, "sh", "-c", command), dict(self._env)

    def put(self, source: Path, target: str) -> None:
        _copy(source, self.root / target)

    def get(self, source: str, target: Path) -> None:
        _copy(self.root / source, target)


class _Conversation:
    """One process, fed and heard until it exits; children that keep its pipe are not waited for."""

    def __init__(
        self, process: subprocess.Popen[bytes], stdin: str, transcript: Transcript
    ) -> None:
        self._process = process
        self._unsent = memoryview(stdin.encode(errors="surrogateescape"))
        self._transcript = transcript
        self._exited = threading.Event()
        self._timed_out = False

    def to_the_end(self, timeout_s: float) -> int:
        wake, waker = os.pipe()
        timer = threading.Timer(timeout_s, self._time_out)
        waiter = threading.Thread(target=self._wait, args=(waker,))
        timer.daemon = waiter.daemon = True
        waiter.start()
        timer.start()
        try:
            self._listen(wake)
        except BaseException:  # ours, or the caller's `on_line`: nothing may run on unheard
            self._kill()
            raise
        finally:
            timer.cancel()
            waiter.join()
            os.close(wake)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
        if self._timed_out:
            return TIMED_OUT
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    def _wait(self, waker: int) -> None:
        self._process.wait()
        self._exited.set()
        os.close(waker)

    def _time_out(self) -> None:
        if not self._exited.is_set():
            self._timed_out = True
            self._kill()

    def _kill(self) -> None:
        """The whole session: timeout(1) and job control make process groups of their own in it."""
        if self._exited.is_set():
            return
        for group in {self._process.pid, *_groups_of_session(self._process.pid)}:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)

    def _listen(self, wake: int) -> None:
        out = self._process.stdout
        assert out is not None
        os.set_blocking(out.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            selector.register(wake, selectors.EVENT_READ)
            if self._process.stdin is not None:
                os.set_blocking(self._process.stdin.fileno(), False)
                selector.register(self._process.stdin, selectors.EVENT_WRITE)
            while not self._exited.is_set():
                for key, _ in selector.select():
                    if key.fileobj is self._process.stdin:
                        if not self._send():
                            selector.unregister(key.fileobj)
                    elif key.fileobj is out and not self._hear(out.fileno()):
                        selector.unregister(out)
        # What it wrote before it exited is in the pipe; a child left behind may write for ever.
        for _ in range(DRAINED_READS):
            if not self._hear(out.fileno()):
                break
        self._transcript.finish()

    def _send(self) -> bool:
        """Write what fits; False when all is said or nobody listens."""
        pipe = self._process.stdin
        assert pipe is not None
        try:
            sent = os.write(pipe.fileno(), self._unsent[:PIPE_BYTES])
        except BlockingIOError:
            return True
        except BrokenPipeError:
            sent = len(self._unsent)
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            pipe.close()
        return bool(self._unsent)

    def _hear(self, descriptor: int) -> bool:
        """Read what is there; False when there is nothing."""
        try:
            data = os.read(descriptor, PIPE_BYTES)
        except BlockingIOError:
            return False
        self._transcript.take(data)
        return bool(data)


def _groups_of_session(session: int) -> set[int]:
    groups = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            stat = (process / "stat").read_text(errors="replace")
            _, _, group, its_session = stat.rpartition(")")[2].split()[:4]
            if int(its_session) == session:
                groups.add(int(group))
    return groups


def _copy(source: Path, target: Path) -> None:
    """Whole or not at all: a copy that breaks off leaves `target` as it was."""
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:64]}.", dir=target.parent)
    os.close(descriptor)
    part = Path(name)
    try:
        shutil.copy2(source, part)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
