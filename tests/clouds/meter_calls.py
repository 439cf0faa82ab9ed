"""The meter and the knobs over HTTP, for whoever runs the cloud as a process of its own.

Beside the provider's API, on the same port, without a key: no knob touches them.
"""

import json
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.clouds.wire import Reply
from tests.clouds.world import World

PATH = "/meter"
MICRODOLLAR = Decimal("0.000001")


def routes(world: World) -> list[Route]:
    """GET meter; GET, POST, DELETE faults; GET, POST clock."""

    def route(path: str, method: str, handler: Callable[[World, dict[str, Any]], Any]) -> Route:
        def handle(body: dict[str, Any]) -> Reply:
            with world.lock:
                world.settle()
                try:
                    return Reply(handler(world, body))
                except (ValueError, TypeError, KeyError) as problem:
                    return Reply({"error": str(problem)}, 400)

        async def serve(request: Request) -> Response:
            raw = await request.body()
            body = json.loads(raw) if raw else dict(request.query_params)
            return (await run_in_threadpool(handle, body)).response()

        return Route(path, serve, methods=[method])

    return [
        route(PATH, "GET", show_meter),
        route(f"{PATH}/faults", "GET", show_faults),
        route(f"{PATH}/faults", "POST", set_fault),
        route(f"{PATH}/faults", "DELETE", clear_fault),
        route(f"{PATH}/clock", "GET", show_clock),
        route(f"{PATH}/clock", "POST", move_clock),
    ]


def show_meter(world: World, body: dict[str, Any]) -> Any:
    reading = world.reading()
    return {
        "instances": [
            {
                "id": line.id,
                "label": line.label,
                "state": line.state,
                "billed_usd": line.billed_usd.quantize(MICRODOLLAR),
                "alive": line.alive,
            }
            for line in reading.instances
        ],
        "billed_usd": reading.billed_usd.quantize(MICRODOLLAR),
        "alive": reading.alive,
    }


def show_faults(world: World, body: dict[str, Any]) -> Any:
    """Every knob with its sentence and parameters; `set` holds the values of those in force.

    `endpoints` are the words that a knob's `endpoint` can be.
    """
    shown = []
    for fault in world.knobs.faults.values():
        setting = world.knobs.get(fault.name)
        shown.append(
            {
                "name": fault.name,
                "sentence": fault.sentence,
                "parameters": dict(fault.parameters),
                "set": setting and setting.values,
            }
        )
    return {"faults": shown, "endpoints": sorted(world.endpoints)}


def set_fault(world: World, body: dict[str, Any]) -> Any:
    values = dict(body)
    world.set_fault(str(values.pop("name")), values)
    return show_faults(world, {})


def clear_fault(world: World, body: dict[str, Any]) -> Any:
    """The named knob, or every one."""
    world.clear_fault(body.get("name"))
    return show_faults(world, {})


def show_clock(world: World, body: dict[str, Any]) -> Any:
    return {"now": world.now.isoformat(), "rate": world.timeline.clock.rate}


def move_clock(world: World, body: dict[str, Any]) -> Any:
    """`advance_s`, or `to` an instant, and `rate`: seconds that pass in each real one."""
    clock = world.timeline.clock
    if "to" in body:
        clock.advance((datetime.fromisoformat(body["to"]) - world.now).total_seconds())
    clock.advance(float(body.get("advance_s", 0)))
    if "rate" in body:
        clock.run_at(float(body["rate"]))
    world.settle()
    return show_clock(world, {})
