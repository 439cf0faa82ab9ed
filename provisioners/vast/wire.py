"""One request to Vast's API and what its answer is worth: yes, no, or nothing known.

Facts that shape it: a wrong key is 404 `auth_error`, so a status alone never says "gone"; a refusal
can come with status 200 and `success: false`; 429 is plain text, JSON of two shapes, or a used-up
daily quota; a gateway may answer HTML with any status.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import httpx

from gpurun.errors import ProviderError, ProviderUnreachable

V0, V1 = "/api/v0", "/api/v1"
SAID_MOST = 200  # characters of an answer that go into a message
TOO_FREQUENT = "API requests too frequent"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; `body` is None where it is not JSON."""

    status: int
    body: Any
    said: str  # in a message: short, one line, without the key

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300 and not self.denied

    @property
    def fields(self) -> Mapping[str, Any]:
        return self.body if isinstance(self.body, dict) else {}

    @property
    def denied(self) -> bool:
        return self.fields.get("success") is False

    @property
    def error(self) -> str:
        """Vast's word for what is wrong, with the text around it: the status says too little."""
        return f"{self.fields.get('error', '')} {self.fields.get('msg', '')}".strip()

    @property
    def no_such_instance(self) -> bool:
        return "no_such_instance" in self.error

    @property
    def wrong_key(self) -> bool:
        denies = self.status in (401, 403) or "auth_error" in self.error
        return self.status < 500 and denies

    @property
    def too_frequent(self) -> bool:
        return self.status == 429


class Wire:
    """`http` knows the address and the key; whether it waits or repeats is its own business."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._key = http.headers.get("authorization", "").removeprefix("Bearer ")

    @property
    def url(self) -> str:
        return str(self._http.base_url).rstrip("/")

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Answer:
        """The answer, whatever it says; httpx.RequestError where there is none."""
        content = None if body is None else json.dumps(body, default=_number)
        headers = {} if content is None else {"content-type": "application/json"}
        reply = self._http.request(method, path, params=query, content=content, headers=headers)
        return Answer(reply.status_code, _parsed(reply.text), self._short(reply.text))

    def ask(
        self,
        what: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Answer:
        """An answer that is yes, or a refusal; `what` names the request in messages.

        ProviderUnreachable: nothing is known.  ProviderError: this key may not ask.
        """
        try:
            answer = self.send(method, path, query=query, body=body)
        except httpx.RequestError as error:
            raise ProviderUnreachable(f"vast: no answer to {what}: {trouble(error)}") from None
        if answer.too_frequent:
            raise ProviderUnreachable(f"vast: asked too often for {what}: {answer.said}")
        if answer.body is None or answer.status >= 500 or 300 <= answer.status < 400:
            raise ProviderUnreachable(
                f"vast: no sensible answer to {what} (status {answer.status}): {answer.said}"
            )
        if answer.wrong_key:
            raise ProviderError(
                f"vast does not let this key do {what} ({answer.said}): "
                "run `gpurun auth vast`, or give the key the scope"
            )
        return answer

    def get(self, what: str, path: str, **query: str) -> Answer:
        """A read that was answered in full, or an error."""
        return self.accepted(what, self.ask(what, "GET", path, query=query or None))

    @staticmethod
    def accepted(what: str, answer: Answer) -> Answer:
        if not answer.ok:
            raise ProviderError(f"vast refused {what} (status {answer.status}): {answer.said}")
        return answer

    def _short(self, text: str) -> str:
        if self._key:
            text = text.replace(self._key, "[key]")
        return " ".join(text.split())[:SAID_MOST] or "nothing"


def trouble(error: httpx.RequestError) -> str:
    return str(error) or type(error).__name__


def money(value: Any) -> Decimal | None:
    """A number of dollars out of JSON; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    found = Decimal(value)
    return found if found >= 0 else None


def _parsed(text: str) -> Any:
    def refuse(word: str) -> None:
        raise ValueError(word)  # NaN and Infinity are no money

    try:
        return json.loads(text, parse_float=Decimal, parse_constant=refuse)
    except (ValueError, RecursionError):
        return None


def _number(value: object) -> float:
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"{value!r} is not JSON")
