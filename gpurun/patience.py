"""Patience with a provider: requests are spaced as it wants them, and what may be is sent again.

It lies under a provider's HTTP client, so that no provisioner waits or repeats anything itself.
What may be repeated is listed by the provider (`Endpoint.repeat`); a purchase never is, and what is
on no list is sent once.  Waits are short: behind this the engine and the keeper try again for ever,
and a deadline must not stand in a queue.
"""

import random
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

from gpurun.clock import Clock
from gpurun.provider import Endpoint

TRIES = 4
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 30.0  # a longer Retry-After is for whoever asks again
AGAIN = frozenset({429, 500, 502, 503, 504})


class Patience(httpx.BaseTransport):
    """`inner` sends.  `jitter` answers a factor for each wait, about 1."""

    def __init__(
        self,
        inner: httpx.BaseTransport,
        endpoints: Sequence[Endpoint],
        clock: Clock,
        jitter: Callable[[], float] = lambda: random.uniform(0.5, 1.5),
    ) -> None:
        self._inner = inner
        self._queues = [_Queue(endpoint, clock) for endpoint in endpoints]
        self._clock = clock
        self._jitter = jitter

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        queue = next((each for each in self._queues if each.takes(request)), None)
        for tried in range(1, TRIES + 1):
            if queue is not None:
                queue.wait()
            last = tried == TRIES or queue is None or not queue.endpoint.repeat
            sent_s = self._clock.boot_s()
            try:
                response = self._inner.handle_request(request)
            except httpx.TransportError:
                if last:
                    raise
                self._clock.sleep(self._pause_s(tried))
                continue
            self._observe(response, self._clock.boot_s() - sent_s)
            if last or response.status_code not in AGAIN:
                return response
            response.read()
            wait_s = self._asked_for_s(response)
            if wait_s is None:
                wait_s = self._pause_s(tried)
            if wait_s > LONGEST_WAIT_S:
                return response
            response.close()
            self._clock.sleep(wait_s)
        raise AssertionError("the last try answers or raises")

    def close(self) -> None:
        self._inner.close()

    def _pause_s(self, tried: int) -> float:
        return FIRST_WAIT_S * (1 << tried - 1) * self._jitter()

    def _asked_for_s(self, response: httpx.Response) -> float | None:
        """Retry-After in seconds or as a date, X-RateLimit-Reset, or `retry_after` in the body."""
        headers = response.headers
        if (said := headers.get("retry-after")) is not None:
            return _seconds(said) if _seconds(said) is not None else self._until_s(_date(said))
        if (reset := _seconds(headers.get("x-ratelimit-reset", ""))) is not None:
            return self._until_s(_from_epoch(reset))
        try:
            body = response.json()
        except ValueError:
            return None
        return _seconds(str(body.get("retry_after"))) if isinstance(body, dict) else None

    def _until_s(self, moment: datetime | None) -> float | None:
        return None if moment is None else max(0.0, (moment - self._clock.now()).total_seconds())

    def _observe(self, response: httpx.Response, took_s: float) -> None:
        """A provider's word on the time of day, unless it comes from a cache."""
        date = _date(response.headers.get("date", ""))
        if date is not None and "age" not in response.headers:
            self._clock.observe(date, took_s)


@dataclass(slots=True)
class _Queue:
    """One endpoint: when it was last asked, by any thread of this process."""

    endpoint: Endpoint
    clock: Clock
    sent_s: deque[float] = field(default_factory=deque)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def takes(self, request: httpx.Request) -> bool:
        same = request.method == self.endpoint.method
        return same and re.fullmatch(self.endpoint.path, request.url.path) is not None

    def wait(self) -> None:
        """Until this request may go out; its place is taken at once, the wait is outside."""
        burst, span_s = self.endpoint.burst, self.endpoint.interval_s * self.endpoint.burst
        with self.lock:
            now_s = self.clock.boot_s()
            due_s = now_s
            if len(self.sent_s) == burst:
                due_s = max(now_s, self.sent_s.popleft() + span_s)
            self.sent_s.append(due_s)
        if due_s > now_s:
            self.clock.sleep(due_s - now_s)


def _seconds(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,12}(\.\d+)?", text.strip()) else None


def _from_epoch(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _date(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
