"""How far a long loop is, said on stderr about once a second, to a terminal or a log alike."""

import sys
import time
from types import TracebackType

SECONDS_BETWEEN_LINES = 1.0


class Progress:
    def __init__(self, what: str, total: int, unit: str) -> None:
        self._what, self._total, self._unit = what, total, unit

    def __enter__(self) -> "Progress":
        self._done = 0
        self._started_s = self._said_s = time.monotonic()
        return self

    def advance(self, count: int) -> None:
        self._done += count
        now_s = time.monotonic()
        if now_s - self._said_s >= SECONDS_BETWEEN_LINES:
            self._said_s = now_s
            self._say(now_s)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._say(time.monotonic())

    def _say(self, now_s: float) -> None:
        elapsed_s = max(now_s - self._started_s, 1e-9)
        percent = 100 * self._done / max(self._total, 1)
        print(
            f"{self._what}: {percent:.0f}% ({self._done}/{self._total} {self._unit},"
            f" {self._done / elapsed_s:.0f} {self._unit}/s)",
            file=sys.stderr,
            flush=True,
        )
