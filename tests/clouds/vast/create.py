"""Renting at the emulated Vast: `PUT /asks/{id}/` and its relations.

Facts that shape it: it is not idempotent; a refusal can carry the id of an instance that was made
all the same; a bid below the floor parks a stopped instance that bills storage, unless
`cancel_unavail`; a missing price is on-demand at the full price, whatever was searched for.
"""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from tests.clouds.vast.account import refuse
from tests.clouds.vast.instance import Instance
from tests.clouds.vast.search import DEFAULT_STORAGE_GB, BadQuery, offer_row, search
from tests.clouds.vast.world import VastWorld
from tests.clouds.wire import Call, Reply

ONSTART_MOST, LABEL_MOST, ENV_MOST = 4048, 256, 32768
LEAST_DISK_GB = 8
BIDS_USD = (Decimal("0.001"), Decimal(128))


def create(world: VastWorld, call: Call) -> Reply:
    key = world.authorize(call, "instance_write")
    world.account.note(call, key, world.now)
    return _rent(world, int(call.params["id"]), call.body)


def create_many(world: VastWorld, call: Call) -> Reply:
    key = world.authorize(call, "instance_write")
    world.account.note(call, key, world.now)
    replies = [_rent(world, int(number), call.body) for number in call.body.get("ids") or []]
    return Reply([reply.body for reply in replies])


def launch(world: VastWorld, call: Call) -> Reply:
    """Search and rent in one call; note that it needs the scope `misc` alone."""
    key = world.authorize(call, "misc")
    world.account.note(call, key, world.now)
    try:
        found = offers(world, call.body.get("q") or {})
    except BadQuery as problem:
        raise refuse(400, "invalid_args", str(problem)) from problem
    if not found:
        raise refuse(404, "invalid_args", "error 404/3603: no_such_ask no matching offer.")
    return _rent(world, found[0]["id"], call.body)


def offers(world: VastWorld, query: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a search returns."""
    if world.knobs.hit("search_empty"):
        return []
    storage = query.get("allocated_storage")
    gb = DEFAULT_STORAGE_GB if storage is None else Decimal(str(storage))
    kind = {"ondemand": "on-demand"}.get(query.get("type", ""), query.get("type") or "on-demand")
    factor = world.price_factor()
    rows = [offer_row(ask, gb, kind, world.now, factor) for ask in world.asks.values()]
    if world.knobs.get("offer_excludes_storage"):
        rows = [row | {"dph_total": row["dph_base"]} for row in rows]
    world.searches += 1
    if world.knobs.get("search_varies"):
        rows = [row for row in rows if row["id"] % 2 == world.searches % 2]
    return search(rows, query, numbers_ignored=bool(world.knobs.get("filters_ignored")))


def _rent(world: VastWorld, ask_id: int, body: Mapping[str, Any]) -> Reply:
    if world.credit_usd <= 0:
        raise refuse(400, "insufficient_credit", "Your account lacks credit; see the billing page.")
    gone = world.knobs.hit("offer_gone")
    ask = world.asks.get(ask_id)
    if gone or ask is None:
        raise _no_such_ask(ask_id, (gone and gone["status"]) or 400)
    disk_gb, price = _check(ask.machine.disk_space, body)
    low = price is not None and price < ask.machine.min_bid * world.price_factor()
    refused = world.knobs.hit("create_refused_made")
    if low and body.get("cancel_unavail") and not refused:
        raise _no_such_ask(ask_id, 410)
    parked = low or refused is not None
    if not parked:
        del world.asks[ask_id]
    number = world.new_instance_id()
    factor = world.price_factor()
    instance = Instance(
        id=number,
        label=str(body.get("label") or ""),
        spec=world.spec(ask.machine, disk_gb),
        made_at=world.now,
        state="provisioning",
        ask_id=ask_id,
        machine_offered=ask.machine,
        disk_gb=disk_gb,
        gpu_usd_per_hour=ask.machine.usd_per_hour * factor if price is None else price,
        image=str(body.get("image") or "template"),
        env={str(name): str(value) for name, value in _env(body).items()},
        onstart=str(body.get("onstart") or ""),
        runtype=str(body.get("runtype") or "ssh").replace("_direct", "_direc"),
        api_key=world.account.container_key(number),
        is_bid=price is not None,
    )
    if parked or body.get("target_state") == "stopped":
        world.change(instance, "created", intended="stopped", allocated="stopped")
    else:
        world.start(instance)
    world.add(instance)
    if parked:
        return Reply(
            {
                "success": False,
                "error": "invalid_price" if low else "no_such_ask",
                "msg": "error 400/3604: the offer could not be scheduled; instance stopped.",
                "new_contract": int(number),
                "ask_id": ask_id,
            },
            400 if refused else 200,
        )
    if world.knobs.hit("create_replayed"):
        raise _no_such_ask(ask_id, 400)
    answer = {"success": True, "new_contract": int(number), "instance_api_key": instance.api_key}
    return Reply(answer)


def _no_such_ask(ask_id: int, status: int) -> Exception:
    msg = f"error 404/3603: no_such_ask Instance type by id {ask_id} is not available."
    return refuse(status, "invalid_args", msg, ask_id=ask_id)


def _env(body: Mapping[str, Any]) -> Mapping[str, Any]:
    env = body.get("env") or {}
    # A string of docker's flags is for templates only: it is not applied here.
    return env if isinstance(env, Mapping) else {}


def _check(space_gb: float, body: Mapping[str, Any]) -> tuple[Decimal, Decimal | None]:
    """Disk in GB and the bid, if the order is one that Vast takes."""
    problems = []
    if not body.get("image") and not body.get("template_hash_id") and not body.get("template_id"):
        problems.append("image is missing")
    if len(str(body.get("label") or "")) > LABEL_MOST:
        problems.append(f"label is longer than {LABEL_MOST}")
    if len(str(body.get("onstart") or "")) > ONSTART_MOST:
        problems.append(f"onstart is longer than {ONSTART_MOST}")
    if sum(len(str(name)) + len(str(value)) for name, value in _env(body).items()) > ENV_MOST:
        problems.append(f"env is longer than {ENV_MOST}")
    try:
        disk_gb = Decimal(str(body.get("disk") or 10))
        price = None if body.get("price") is None else Decimal(str(body["price"]))
    except InvalidOperation:
        raise refuse(400, "invalid_args", "disk and price must be numbers") from None
    if not LEAST_DISK_GB <= disk_gb <= Decimal(str(space_gb)):
        problems.append(f"disk must be {LEAST_DISK_GB} to {space_gb:.0f} GB")
    if problems:
        raise refuse(400, "invalid_args", f"error 400/3601: {'; '.join(problems)}.")
    if price is not None and not BIDS_USD[0] <= price <= BIDS_USD[1]:
        raise refuse(400, "invalid_price", "error 400/3605: invalid bid price.")
    return disk_gb, price
