"""Following a run by its journal: the driver is another process, and outlives this one."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from gpurun import glance, show
from gpurun.clock import Deadline
from gpurun.errors import UsageError
from gpurun.places import Places

POLL_S = 0.3
LINE_EVERY_S = 5.0  # where lines cannot be rewritten
STILL_BILLING_S = 60.0
LOOK_AFTER_KEEPER_S = 10.0
FINAL_WITHIN_S = 10.0
TAIL_BYTES = 4096
LIVE = ("active", "still_billing")


class Hangup(BaseException):
    """The terminal was closed, or this process was told to stop."""


@contextmanager
def hangup_raises() -> Iterator[None]:
    """SIGHUP and SIGTERM detach; what is ignored (nohup) stays so."""
    before = {
        number: signal.signal(number, _hang_up)
        for number in (signal.SIGHUP, signal.SIGTERM)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Follower:
    """Shows one run until it has ended; `until_end` can be called again after an interruption."""

    def __init__(self, home: Path, run_id: str) -> None:
        self._home = home
        self._run_id = run_id
        self._places = Places(home)
        self._clock = glance.agreed_clock(home)
        self._look = show.Look.of(sys.stderr)
        self._shown = ""
        self._phase = ""
        self._printed_s = float("-inf")
        self._silent = True  # the phase has said nothing yet
        self._billing_since_s: float | None = None
        self._keeper_s = self._clock.boot_s()

    @property
    def document(self) -> dict[str, Any]:
        return glance.run_document(self._home, self._run_id, self._clock.now())

    def until_end(self) -> dict[str, Any] | None:
        """The run's last document; None when a journal that cannot be read knows it no more."""
        return self._until(lambda _document: False)

    def until_task(self, number: int) -> dict[str, Any] | None:
        """Until this recipe on the run's box is over, or the run is."""

        def over(document: dict[str, Any]) -> bool:
            task = document["task"]
            return bool(task) and (task["number"] > number or task["exit_code"] is not None)

        return self._until(over)

    def _until(self, over: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
        while True:
            try:
                document = self.document
            except UsageError:
                if not glance.trouble(self._home):
                    raise
                return None
            if document["state"] not in LIVE or self._too_long(document) or over(document):
                self._end_line()
                return document
            self._print(document)
            self._look_after_keeper()
            self._clock.sleep(POLL_S)

    def final(self) -> dict[str, Any]:
        """The bill.  A journal that another program holds for a moment is waited for."""
        deadline = Deadline(FINAL_WITHIN_S)
        while True:
            try:
                return glance.final_document(self._home, self._run_id, self._clock.now())
            except UsageError:
                if deadline.passed():
                    raise

    def _too_long(self, document: dict[str, Any]) -> bool:
        """Still billing for a minute: said with exit code 10; driver and keeper go on."""
        if document["state"] != "still_billing":
            self._billing_since_s = None
            return False
        now_s = self._clock.boot_s()
        if self._billing_since_s is None:
            self._billing_since_s = now_s
        return now_s - self._billing_since_s >= STILL_BILLING_S

    def _print(self, document: dict[str, Any]) -> None:
        said = show.said_of_itself(document, self._last_output(document))
        line = show.progress_line(document, said, self._look)
        changed, self._phase = document["phase"] != self._phase, document["phase"]
        if self._look.columns is not None:
            self._rewrite(line, keep_old=changed)
            return
        now_s = self._clock.boot_s()
        news = bool(said) and self._silent  # the first words of a phase do not wait
        if changed or news or now_s - self._printed_s >= LINE_EVERY_S:
            self._printed_s, self._silent = now_s, not said
            print(line, file=sys.stderr, flush=True)

    def _rewrite(self, line: str, *, keep_old: bool) -> None:
        if keep_old and self._shown:
            sys.stderr.write("\n")
        if line != self._shown or keep_old:
            sys.stderr.write(f"\r\x1b[2K{line}")
            sys.stderr.flush()
        self._shown = line

    def _end_line(self) -> None:
        if self._look.columns is not None and self._shown:
            sys.stderr.write("\n")
            sys.stderr.flush()
        self._shown = ""

    def _last_output(self, document: dict[str, Any]) -> str:
        """The last line that the step in hand has printed; pip rewrites its line with \\r."""
        name = "train.log" if document["phase"] == "train" else "steps.log"
        try:
            with (self._places.run_dir(self._run_id) / name).open("rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - TAIL_BYTES))
                text = file.read().decode(errors="replace").replace("\r", "\n")
        except OSError:
            return ""
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        last = "".join(c for c in (lines or [""])[-1] if c.isprintable())
        return "" if last == f"phase {document['phase']}" else last

    def _look_after_keeper(self) -> None:
        """Who watches a run also sees to it that somebody ends it."""
        now_s = self._clock.boot_s()
        if now_s - self._keeper_s < LOOK_AFTER_KEEPER_S:
            return
        self._keeper_s = now_s
        if glance.needs_keeper(self._home):
            from gpurun import keeper

            keeper.summon(self._places)


def _hang_up(_number: int, _frame: FrameType | None) -> None:
    raise Hangup
