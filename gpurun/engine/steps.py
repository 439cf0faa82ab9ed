"""One step of a phase, as a command on the box that nothing of ours has to outlive.

A connection that breaks, a driver that dies and another that takes over change nothing: the step
runs on, and whoever comes next hears its output from the first line and learns how it ended.
"""

import codecs
import hashlib
from collections.abc import Callable

from gpurun.clock import Clock
from gpurun.engine import detached
from gpurun.errors import PhaseFailed
from gpurun.shell import TIMED_OUT, Result, Shell

LAUNCH_S = 60.0
LOOK_S = 40.0
NEWS_WITHIN_S = 20.0
TERM_S = 15.0
TAIL_CHARS = 20_000
LAST_LOOKS = 16  # 4 MiB: what it left running may print for ever


def name_of(run_id: str, phase: str, index: int, text: str) -> str:
    """The same for whoever drives the run; another for another text."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return f"steps/{run_id}-{phase}-{index}-{digest}"


def perform(
    shell: Shell,
    name: str,
    text: str,
    *,
    timeout_s: float,
    clock: Clock,
    on_line: Callable[[str], None],
) -> Result:
    """Launch the step unless it was launched, and follow it to its end.

    Its time is counted here: after `timeout_s` all that it started is killed (exit 124).
    PhaseFailed: the box was restarted under it, or it was killed.  ConnectionError: the box
    cannot be asked.
    """
    launched = shell.run(detached.launch_text(name, f"set -e\n{text}"), timeout_s=LAUNCH_S)
    if not launched.ok:
        raise ConnectionError(f"the step could not be launched: {launched.tail(3)}")
    heard, looks_since_exit = _Lines(on_line), 0
    until_s = clock.boot_s() + timeout_s
    while True:
        left_s = until_s - clock.boot_s()
        sight = detached.look(
            shell,
            name,
            heard.read_bytes,
            timeout_s=LOOK_S,
            wait_s=max(0.0, min(NEWS_WITHIN_S, left_s)),
        )
        heard.take(sight.log)
        if sight.exit_code is not None:
            looks_since_exit += 1
            if not sight.log or looks_since_exit > LAST_LOOKS:
                return Result(sight.exit_code, heard.finish())
        elif sight.log:
            continue
        elif sight.rebooted or not sight.alive:
            how = "the box was restarted under it" if sight.rebooted else "it was killed"
            raise PhaseFailed(f"it has no exit code: {how}. Its last lines:\n{heard.finish()}")
        elif left_s <= 0:
            shell.run(detached.kill_text(name), timeout_s=TERM_S)
            return Result(TIMED_OUT, heard.finish())


class _Lines:
    """Bytes of a log, told line by line; the end of it is kept."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self.read_bytes = 0
        self._on_line = on_line
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line = ""
        self._kept = ""

    def take(self, data: bytes) -> None:
        self.read_bytes += len(data)
        text = self._decoder.decode(data).replace("\r\n", "\n").replace("\r", "\n")
        self._kept = (self._kept + text)[-TAIL_CHARS:]
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._on_line(line)

    def finish(self) -> str:
        if self._line:
            self._on_line(self._line)
            self._line = ""
        return self._kept
