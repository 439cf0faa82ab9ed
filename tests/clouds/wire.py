"""Requests, answers, and what goes wrong between the two: the part of an API that is only HTTP.

Starlette routes and uvicorn serves, on loopback: both are light, maintained, and nothing more than
ASGI.  uvicorn takes a protocol class of ours, which is how a connection is cut instead of answered.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from email.utils import format_datetime
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from tests.clouds.faults import Setting
from tests.clouds.world import World

PAGE = "<!DOCTYPE html><html><head><title>Just a moment...</title></head><body></body></html>"
HANG_S = 3600


@dataclass(frozen=True, slots=True)
class Call:
    """One request.  `body` is {} where none, or no JSON object, was sent."""

    method: str
    path: str
    params: Mapping[str, Any]
    query: QueryParams
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    peer: str

    @property
    def key(self) -> str | None:
        """The API key, from the header or the query."""
        word, _, key = self.headers.get("authorization", "").partition(" ")
        return key.strip() if word.lower() == "bearer" else self.query.get("api_key")


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer; `text` instead of JSON where it is given."""

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str | None = None
    media_type: str = "application/json"

    def response(self) -> Response:
        content = to_json(self.body) if self.text is None else self.text.encode()
        # Exactly this type: with a charset, the official client refuses a search's answer.
        headers = {"content-type": self.media_type, **self.headers}
        return Response(content, status_code=self.status, headers=headers)


class Refusal(Exception):
    """An answer that ends the handling of a request."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class Cut(Exception):
    """The connection ends without an answer."""


Handler = Callable[[Any, Call], Reply]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`word` is what the knobs call it."""

    method: str
    path: str
    word: str
    handler: Handler


class Lines:
    """The open connections, by the client's address, so that one can be cut."""

    def __init__(self) -> None:
        self._transports: dict[tuple[str, int], asyncio.Transport] = {}
        lines = self

        class Protocol(H11Protocol):
            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                lines._transports[transport.get_extra_info("peername")[:2]] = transport

            def connection_lost(self, exc: Exception | None) -> None:
                assert self.transport is not None
                lines._transports.pop(self.transport.get_extra_info("peername")[:2], None)
                super().connection_lost(exc)

        self.protocol = Protocol

    def cut(self, request: Request) -> None:
        assert request.client is not None
        self._transports[request.client.host, request.client.port].abort()


def routes(
    world: World,
    lines: Lines,
    endpoints: Sequence[Endpoint],
    too_frequent: Callable[[Setting], Reply],
) -> list[Route]:
    """The endpoints as Starlette's routes; `too_frequent` words its 429."""

    def route(endpoint: Endpoint) -> Route:
        async def serve(request: Request) -> Response:
            try:
                reply = await _answer(world, endpoint, await _call(request), too_frequent)
            except Cut:
                lines.cut(request)
                return Response(status_code=500)  # never arrives
            response = reply.response()
            response.headers.update(_dates(world))
            return response

        return Route(endpoint.path, serve, methods=[endpoint.method])

    return [route(endpoint) for endpoint in endpoints]


async def _answer(
    world: World, endpoint: Endpoint, call: Call, too_frequent: Callable[[Setting], Reply]
) -> Reply:
    def handle() -> Reply:
        with world.lock:
            world.settle()
            try:
                return endpoint.handler(world, call)
            except Refusal as refusal:
                return refusal.reply

    with world.lock:
        world.asked[endpoint.word] += 1
    early = await _meddle(world, endpoint.word, "before", too_frequent)
    if early is not None:
        return early
    reply = await run_in_threadpool(handle)
    late = await _meddle(world, endpoint.word, "after", too_frequent)
    return reply if late is None else late


async def _meddle(
    world: World, word: str, when: str, too_frequent: Callable[[Setting], Reply]
) -> Reply | None:
    """What goes wrong on the wire before, or after, a request has its effect."""

    def hit(name: str) -> Setting | None:
        with world.lock:
            setting = world.knobs.of(name, word)
            if setting is None or setting.values.get("when", "before") != when:
                return None
            return world.knobs.hit(name, word)

    if setting := hit("down"):
        if setting["how"] == "503":
            return Reply(status=503, text="Service Unavailable", media_type="text/plain")
        if setting["how"] == "hang":
            await asyncio.sleep(HANG_S)
        raise Cut
    if setting := hit("slow"):
        await asyncio.sleep(setting["seconds"])
    if word == "schedule" and (setting := hit("schedule_answer_lost")):
        raise Cut
    if hit("answer_lost"):
        raise Cut
    if setting := hit("rate_limited"):
        return too_frequent(setting)
    if setting := hit("server_error"):
        return broken(setting["status"], setting["body"])
    if hit("html"):
        return Reply(text=PAGE, media_type="text/html; charset=utf-8")
    return None


def broken(status: int, body: str) -> Reply:
    """An error of a gateway, or of the API behind it."""
    if body == "json":
        return Reply({"detail": "Internal server error"}, status)
    text = PAGE if body == "html" else "Bad Gateway"
    return Reply(
        status=status, text=text, media_type="text/html" if body == "html" else "text/plain"
    )


async def _call(request: Request) -> Call:
    raw = await request.body()
    try:
        body = json.loads(raw, parse_float=Decimal) if raw else {}
    except ValueError:
        body = {}
    return Call(
        method=request.method,
        path=request.url.path,
        params=request.path_params,
        query=request.query_params,
        headers=request.headers,
        body=body if isinstance(body, dict) else {},
        peer=request.client.host if request.client else "",
    )


def _dates(world: World) -> dict[str, str]:
    with world.lock:
        at = world.timeline.clock.now()
        if skew := world.knobs.get("date_skew_s"):
            at += timedelta(seconds=skew["seconds"])
        headers = {}
        if stale := world.knobs.get("stale_date"):
            at -= timedelta(seconds=stale["age_s"])
            headers["age"] = str(stale["age_s"])
    return {"date": format_datetime(at, usegmt=True), **headers}


def to_json(body: Any) -> bytes:
    """JSON in which a Decimal is a number, as near as a double comes to it."""

    def number(value: object) -> float:
        if isinstance(value, Decimal):
            return float(value)
        raise TypeError(f"{value!r} is not JSON")

    return json.dumps(body, default=number).encode()
