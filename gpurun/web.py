"""An HTTP client for a provider: one address, one key, an end to every call.

httpx bounds each read, not the call: an answer that trickles would never end.  Connections are not
kept, because a request on one that has just died may or may not have arrived.  Nothing is
redirected and no proxy of the environment is used: either could replay a purchase, or carry the key
elsewhere.
"""

import queue
import threading
from collections.abc import Sequence

import httpx

from gpurun.clock import Clock
from gpurun.errors import UsageError
from gpurun.patience import Patience
from gpurun.provider import Endpoint

CALL_S = 60.0
CONNECT_S = 10.0
LOOPBACK = {"127.0.0.1", "::1", "localhost"}


def client(
    name: str,
    url: str,
    key: str,
    endpoints: Sequence[Endpoint],
    clock: Clock,
    *,
    call_s: float = CALL_S,
) -> httpx.Client:
    """For the provider `name`; UsageError where the key would go out unencrypted."""
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL:
        address = httpx.URL("")
    if address.scheme not in ("http", "https") or not address.host:
        raise UsageError(f"{name}: {url!r} is not the address of an API, as https://example.com")
    if address.scheme == "http" and address.host not in LOOPBACK:
        raise UsageError(f"{name}: {url} would send the API key unencrypted: use https")
    if not key.isascii() or not key.isprintable():
        raise UsageError(f"{name}: the API key holds characters that none has: store it again")
    plain = httpx.HTTPTransport(
        verify=address.scheme == "https",  # loading certificates takes longer than a local call
        limits=httpx.Limits(max_keepalive_connections=0),
    )
    return httpx.Client(
        base_url=url,
        headers={"Authorization": f"Bearer {key}", "User-Agent": "gpurun"},
        transport=Patience(Bounded(plain, call_s), endpoints, clock),
        timeout=httpx.Timeout(call_s, connect=CONNECT_S),
        follow_redirects=False,
        trust_env=False,
    )


class Bounded(httpx.BaseTransport):
    """Answers whole, or httpx.ReadTimeout after `call_s`, however slowly bytes come."""

    def __init__(self, inner: httpx.BaseTransport, call_s: float) -> None:
        self._inner = inner
        self._call_s = call_s

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answers: queue.SimpleQueue[httpx.Response | Exception] = queue.SimpleQueue()

        def send() -> None:
            try:
                response = self._inner.handle_request(request)
                response.read()
                answers.put(response)
            except Exception as error:  # carried to the thread that asked
                answers.put(error)

        threading.Thread(target=send, daemon=True, name="request").start()
        try:
            answer = answers.get(timeout=self._call_s)
        except queue.Empty:
            raise httpx.ReadTimeout(f"no whole answer in {self._call_s:.0f} s") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self._inner.close()
