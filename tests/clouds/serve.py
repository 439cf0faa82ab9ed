"""A cloud that runs: an API on loopback, its meter, and what a test turns.

with cloud("vast", boxes=StubBoxes()) as vast:
    httpx.get(f"{vast.url}/api/v1/instances/", headers=vast.headers)
    vast.fault("answer_lost", endpoint="create")
    vast.advance(3600)
    assert vast.meter().billed_usd == 0
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import uvicorn
from starlette.applications import Starlette

from tests.clouds import meter_calls
from tests.clouds.boxes import Boxes
from tests.clouds.clock import Clock
from tests.clouds.providers import PROVIDERS
from tests.clouds.real import RealBoxes
from tests.clouds.wire import Lines, routes
from tests.clouds.world import Reading, World

TICK_S = 0.05
CREDIT_USD = Decimal(100)


class Cloud:
    """One running cloud: `url` and `api_key` for a client, the rest for its test."""

    def __init__(self, world: World, port: int) -> None:
        self.world = world
        self.url = f"http://127.0.0.1:{port}"
        self.meter_url = f"{self.url}{meter_calls.PATH}"

    @property
    def api_key(self) -> str:
        return self.world.api_key

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"}

    def meter(self) -> Reading:
        with self.world.lock:
            self.world.settle()
            return self.world.reading()

    def fault(self, name: str, **values: Any) -> None:
        """Set a knob of tests/clouds/knobs.py."""
        with self.world.lock:
            self.world.settle()
            self.world.set_fault(name, values)

    def clear(self, name: str | None = None) -> None:
        """Put a knob back, or all of them."""
        with self.world.lock:
            self.world.clear_fault(name)

    def advance(self, seconds: float) -> None:
        """Let time pass: everything due on the way has happened when this returns."""
        with self.world.lock:
            self.world.timeline.clock.advance(seconds)
            self.world.settle()


@contextmanager
def cloud(
    provider: str,
    *,
    boxes: Boxes | None = None,
    clock: Clock | None = None,
    credit_usd: Decimal = CREDIT_USD,
    offers: int | None = None,
    port: int = 0,
) -> Iterator[Cloud]:
    """A cloud of this provider ("vast" or "prime") until the block ends, and its machines with it.

    `boxes` are real ones if none are given.  `offers` widens the market to that many; `port` 0
    takes a free one.
    """
    world = PROVIDERS[provider].world(clock or Clock(), boxes or RealBoxes(), credit_usd, offers)
    with _listener(port) as listener:
        world.api_port = listener.getsockname()[1]
        server = _server(world, provider)
        serving = threading.Thread(target=server.run, args=([listener],), name=f"{provider} API")
        stop = threading.Event()
        ticking = threading.Thread(target=_tick, args=(world, stop), name=f"{provider} time")
        serving.start()
        ticking.start()
        try:
            yield Cloud(world, world.api_port)
        finally:
            stop.set()
            ticking.join()
            server.should_exit = True
            serving.join()
            with world.lock:
                world.close()
    if world.broken is not None:
        raise RuntimeError(f"the {provider} cloud broke") from world.broken


def _listener(port: int) -> socket.socket:
    """Its protocol is named, else asyncio leaves Nagle's delay on: 40 ms an answer."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    return listener


def _server(world: World, provider: str) -> uvicorn.Server:
    parts, lines = PROVIDERS[provider], Lines()
    endpoints = parts.endpoints()
    world.endpoints = frozenset(endpoint.word for endpoint in endpoints)
    api = routes(world, lines, endpoints, parts.too_frequent)
    app = Starlette(routes=[*meter_calls.routes(world), *api])
    app.router.redirect_slashes = False
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=lines.protocol,
            ws="none",
            lifespan="off",
            log_level="error",
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=1,
        )
    )


def _tick(world: World, stop: threading.Event) -> None:
    """Let time pass also when nobody asks; what breaks is kept for whoever asks next."""
    while not stop.wait(TICK_S):
        with world.lock:
            if world.broken is not None:
                return
            try:
                world.settle()
            except Exception:  # kept in `world.broken`
                return
