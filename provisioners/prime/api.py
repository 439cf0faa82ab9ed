"""HTTP to Prime Intellect: requests, and what their answers are worth.

Facts that shape it: a slash too few is answered by 307 with an empty body; 401 is a bad key, 403 a
missing scope or no key; `detail` is text or a list, beside it there are `errors`; a proxy may
answer a page of HTML with 200.  Whatever is not a JSON object is no answer.
"""

import json
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from gpurun.clock import Clock
from gpurun.errors import ProviderError, ProviderUnreachable
from provisioners.prime.access import Access

CONNECT_S = 4.0
READ_S = 30.0
SEARCH_S = 4.5  # a search is one of several that somebody waits for
CREATE_S = 60.0  # the whole call: a limit on each read is not that
LONGEST_DETAIL = 300
Query = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class Answer:
    """`body` is None where the answer is not a JSON object."""

    status: int
    body: Mapping[str, Any] | None
    detail: str  # one line, without the key
    retry_after: str = ""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


class NoAnswer(Exception):
    """A request whose effect is not known; `sent` is False if it surely never left."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Api:
    """One account's calls.  Nothing is repeated here."""

    def __init__(self, access: Access, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        self._client = self._connect(follow_redirects=True)

    def get(
        self, path: str, query: Query | None = None, *, to: str, read_s: float = READ_S
    ) -> Mapping[str, Any]:
        """The JSON object of an answer; ProviderError says what stood in the way of `to`."""
        return self.require(self.ask("GET", path, query, read_s=read_s), to)

    def ask(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: Mapping[str, Any] | None = None,
        *,
        read_s: float = READ_S,
    ) -> Answer:
        """Any answer; ProviderUnreachable if there is none.  For what may be asked twice."""
        timeout = httpx.Timeout(read_s, connect=CONNECT_S)
        try:
            response = self._client.request(method, path, params=query, json=body, timeout=timeout)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ProviderUnreachable(
                f"prime does not answer at {self._access.url}: {self._clean(error)}"
            ) from None
        return self._read(response)

    def send_once(self, path: str, body: Mapping[str, Any]) -> Answer:
        """For what must never be sent twice: a fresh connection, no redirect, one limit for all."""
        client = self._connect(follow_redirects=False)

        def send() -> Answer:
            with client:
                timeout = httpx.Timeout(CREATE_S, connect=CONNECT_S)
                return self._read(client.post(path, json=body, timeout=timeout))

        try:
            return _within(CREATE_S, send)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol) as error:
            raise NoAnswer(self._clean(error), sent=False) from None
        except (httpx.HTTPError, TimeoutError) as error:
            raise NoAnswer(self._clean(error), sent=True) from None

    def require(self, answer: Answer, to: str) -> Mapping[str, Any]:
        if answer.ok and answer.body is not None:
            return answer.body
        raise trouble(answer, to)

    def _connect(self, *, follow_redirects: bool) -> httpx.Client:
        return httpx.Client(
            base_url=f"{self._access.url}/api/v1",
            headers={
                "authorization": f"Bearer {self._access.api_key}",
                "user-agent": "gpurun",
            },
            follow_redirects=follow_redirects,  # the key goes to no other host
            verify=self._access.url.startswith("https:"),  # plain HTTP shows no certificate
        )

    def _read(self, response: httpx.Response) -> Answer:
        self._observe(response.headers)
        try:
            body = json.loads(response.content, parse_float=Decimal)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            body = None
        return Answer(
            response.status_code,
            body,
            self._clean(_detail(body) if body is not None else "not JSON"),
            response.headers.get("retry-after", ""),
        )

    def _observe(self, headers: httpx.Headers) -> None:
        """A `Date` from a cache tells when the cache was filled."""
        if "age" in headers:
            return
        try:
            date = parsedate_to_datetime(headers.get("date", ""))
        except ValueError:
            return
        if date.tzinfo is not None:
            self._clock.observe(date.astimezone(UTC))

    def _clean(self, said: object) -> str:
        text = " ".join(str(said).split()) or type(said).__name__
        return text.replace(self._access.api_key, "***")[:LONGEST_DETAIL]


def trouble(answer: Answer, to: str) -> ProviderError:
    """Why an answer is not what was asked for, and what to do."""
    said = f"{answer.status}: {answer.detail}"
    if answer.status == 401:
        return ProviderError(
            f"prime refuses the key, so gpurun cannot {to} ({said}): run `gpurun auth prime`"
        )
    if answer.status == 403:
        return ProviderError(
            f"prime does not let this key {to} ({said}): give it that permission in the dashboard "
            "(Settings, API Keys), or run `gpurun auth prime` with another"
        )
    if answer.status == 429:
        wait = f" Wait {answer.retry_after} s." if answer.retry_after.isdecimal() else ""
        return ProviderUnreachable(f"prime wants fewer requests; cannot {to} now ({said}).{wait}")
    if answer.status >= 500:
        return ProviderUnreachable(f"prime cannot {to} now ({said})")
    return ProviderError(f"prime gives no sensible answer; cannot {to} ({said})")


def _within(seconds: float, call: Callable[[], Answer]) -> Answer:
    """The call's answer; TimeoutError when it takes longer, whatever it then comes to."""
    done = queue.SimpleQueue[Answer | Exception]()

    def work() -> None:
        try:
            done.put(call())
        except Exception as error:  # raised below, by whoever waits
            done.put(error)

    threading.Thread(target=work, daemon=True, name="prime create").start()
    try:
        found = done.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:.0f} s") from None
    if isinstance(found, Exception):
        raise found
    return found


def _detail(body: Mapping[str, Any]) -> str:
    """What an error says, in any of its shapes."""
    detail = body.get("detail") or body.get("errors") or body.get("message") or ""
    if not isinstance(detail, list):
        return str(detail)
    return "; ".join(_item(item) for item in detail)


def _item(item: object) -> str:
    if not isinstance(item, Mapping):
        return str(item)
    place = item.get("param") or ".".join(str(part) for part in item.get("loc") or ())
    return f"{place}: {item.get('msg') or item.get('details')}"
