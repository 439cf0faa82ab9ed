"""What Prime Intellect's answers are worth.

Facts that shape it: a slash too few is answered by 307 with an empty body; 401 is a bad key, 403 a
missing scope or no key; `detail` is text or a list, beside it there are `errors`; a proxy may
answer a page of HTML with 200.  Whatever is not a JSON object is no answer.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import httpx

from gpurun.errors import ProviderError, ProviderUnreachable
from gpurun.provider import Endpoint

V1 = "/api/v1"
LONGEST_DETAIL = 300
Query = Mapping[str, str | int]
# No limits are published.  What is not listed here is never repeated: an order above all.
ENDPOINTS = (
    *(Endpoint("GET", rf"{V1}/{path}", repeat=True) for path in ("availability/gpus", "user/.*")),
    *(Endpoint("GET", rf"{V1}/{path}/.*", repeat=True) for path in ("pods", "disks", "ssh_keys")),
    Endpoint("GET", rf"{V1}/billing/wallet", repeat=True),
    *(Endpoint("DELETE", rf"{V1}/{path}/.+", repeat=True) for path in ("pods", "disks")),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """`body` is None where the answer is not a JSON object."""

    status: int
    body: Mapping[str, Any] | None
    detail: str  # one line, without the key

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


class NoAnswer(Exception):
    """A request whose effect is not known; `sent` is False if it surely never left."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Api:
    """One account's calls, as `http` reaches it (gpurun/web.py), or another `key`'s."""

    def __init__(self, http: httpx.Client, key: str = "") -> None:
        self._http = http
        self._key = key or http.headers.get("authorization", "").removeprefix("Bearer ")
        self._headers = {"authorization": f"Bearer {self._key}"}

    @property
    def url(self) -> str:
        return str(self._http.base_url).rstrip("/")

    def get(self, path: str, query: Query | None = None, *, to: str) -> Mapping[str, Any]:
        """The JSON object of an answer; ProviderError says what stood in the way of `to`."""
        return self.require(self.ask("GET", path, query), to)

    def ask(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Any answer; ProviderUnreachable if there is none.  Not for an order."""
        try:
            response = self._http.request(
                method,
                f"{V1}{path}",
                params=query,
                json=body,
                headers=self._headers,
                follow_redirects=True,
            )
        except httpx.HTTPError as error:
            said = self._clean(error)
            raise ProviderUnreachable(
                f"prime does not answer at {self._http.base_url}: {said}"
            ) from None
        return self._read(response)

    def send_once(self, path: str, body: Mapping[str, Any]) -> Answer:
        """For an order: no redirect is followed, and nothing is said twice."""
        try:
            return self._read(self._http.post(f"{V1}{path}", json=body))
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise NoAnswer(self._clean(error), sent=False) from None
        except httpx.HTTPError as error:
            raise NoAnswer(self._clean(error), sent=True) from None

    def require(self, answer: Answer, to: str) -> Mapping[str, Any]:
        if answer.ok and answer.body is not None:
            return answer.body
        raise trouble(answer, to)

    def _read(self, response: httpx.Response) -> Answer:
        try:
            body = json.loads(response.content, parse_float=Decimal)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return Answer(response.status_code, None, "not a JSON object")
        return Answer(response.status_code, body, self._clean(_detail(body)))

    def _clean(self, said: object) -> str:
        text = " ".join(str(said).split()) or type(said).__name__
        return (text.replace(self._key, "***") if self._key else text)[:LONGEST_DETAIL]


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
        return ProviderUnreachable(f"prime wants fewer requests; cannot {to} now ({said})")
    if answer.status >= 500:
        return ProviderUnreachable(f"prime cannot {to} now ({said})")
    return ProviderError(f"prime gives no sensible answer; cannot {to} ({said})")


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
