"""How far a long loop is, said on stderr: a bar on a terminal, a line a second in a log."""

import sys
import threading
import time
from types import TracebackType

SECONDS_BETWEEN_LINES = 1.0
SECONDS_BETWEEN_BARS = 0.1
BAR_WIDTH = 30


class Progress:
    """Any thread may advance it."""

    def __init__(self, what: str, total: int, unit: str) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._lock = threading.Lock()

    def __enter__(self) -> "Progress":
        self._on_terminal = sys.stderr.isatty()
        self._interval_s = SECONDS_BETWEEN_BARS if self._on_terminal else SECONDS_BETWEEN_LINES
        self._done = 0
        self._started_s = self._said_s = time.monotonic()
        return self

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            now_s = time.monotonic()
            if now_s - self._said_s >= self._interval_s:
                self._said_s = now_s
                self._say(now_s)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._say(time.monotonic())
        if self._on_terminal:
            print(file=sys.stderr)

    def _say(self, now_s: float) -> None:
        share = self._done / max(self._total, 1)
        per_second = self._done / max(now_s - self._started_s, 1e-9)
        counts = f"({self._done}/{self._total} {self._unit}, {per_second:.0f} {self._unit}/s)"
        if self._on_terminal:
            bar = ("#" * round(BAR_WIDTH * share)).ljust(BAR_WIDTH)
            print(f"\r{self._what} [{bar}] {share:4.0%} {counts}", end="\x1b[K", file=sys.stderr)
        else:
            print(f"{self._what}: {share:.0%} {counts}", file=sys.stderr, flush=True)
