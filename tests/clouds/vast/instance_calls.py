"""The calls about instances: list, show, change, destroy.

Facts that shape it: the list is paged by 25 and filters by stored columns alone, its old version is
410; what is gone or foreign is `null` with 200; a refused start is queued.
"""

import base64
import json
from collections import Counter
from decimal import Decimal
from typing import Any

from tests.clouds.vast.account import Key, no_such_instance, refuse
from tests.clouds.vast.instance import Instance, row
from tests.clouds.vast.search import BadQuery, matches
from tests.clouds.vast.world import VastWorld
from tests.clouds.wire import Call, Reply, broken

PAGE_MOST, PAGE_LEAST = 25, 5
FILTERED = {"actual_status", "gpu_name", "verification", "id", "label", "machine_id"}
EXECUTED = ("ls", "rm", "du")
QUEUED = "Required resources are currently unavailable, state change queued."


def list_instances(world: VastWorld, call: Call) -> Reply:
    """One page; a keyset token leads to the next."""
    key = world.authorize(call, "instance_read")
    filters, order = _json(call, "select_filters", {}), _json(call, "order_by", [])
    columns, limit = _json(call, "select_cols", None), int(call.query.get("limit", PAGE_MOST))
    if wrong := [name for name in filters if name not in FILTERED]:
        raise refuse(400, "invalid_args", f"cannot filter by {wrong[0]}")
    seen = [] if key.other_account else world.visible(world.living())
    rows = [_row(world, instance) for instance in seen]
    try:
        rows = [row for row in rows if all(matches(row[c], f) for c, f in filters.items())]
    except BadQuery as problem:
        raise refuse(400, "invalid_args", str(problem)) from problem
    for each in reversed(order or [{"col": "id", "dir": "asc"}]):
        if rows and each["col"] not in rows[0]:
            raise refuse(400, "invalid_args", f"no column {each['col']}")
        rows.sort(key=lambda row: (row[each["col"]] is None, row[each["col"]]))
        if each.get("dir") == "desc":
            rows.reverse()
    after = _after(call)
    start = next((n + 1 for n, row in enumerate(rows) if row["id"] == after), 0) if after else 0
    if after and not start:  # that row has gone: go on with those made after it
        start = sum(row["id"] <= after for row in rows)
    size = PAGE_LEAST if limit <= 0 else min(limit, PAGE_MOST)
    page = rows[start : start + size]
    fails = world.knobs.of("list_page_fails")
    if fails and start // size + 1 == fails["page"]:
        world.knobs.hit("list_page_fails")
        return broken(fails["status"], "json")
    wrong_by = world.knobs.get("total_wrong")
    more = start + size < len(rows)
    token = base64.urlsafe_b64encode(json.dumps({"id": page[-1]["id"]}).encode()) if more else None
    return Reply(
        {
            "success": True,
            "instances_found": len(page),
            "total_instances": len(rows) + (wrong_by["by"] if wrong_by else 0),
            "label_counts": Counter(row["label"] or "" for row in rows),
            "next_token": token and token.decode(),
            "instances": [
                {name: each.get(name) for name in ("id", *columns)} if columns else each
                for each in page
            ],
        }
    )


def deprecated(world: VastWorld, call: Call) -> Reply:
    msg = "GET /api/v0/instances/ is deprecated; use GET /api/v1/instances/."
    raise refuse(410, "deprecated_endpoint", msg)


def filters(world: VastWorld, call: Call) -> Reply:
    world.authorize(call, "instance_read")
    rows = [_row(world, instance) for instance in world.living()]
    names = ("actual_status", "verification", "gpu_name")
    return Reply({"filters": [{name: row[name] for name in names} for row in rows]})


def price_increases(world: VastWorld, call: Call) -> Reply:
    world.authorize(call, "instance_read")
    return Reply({"success": True, "pending_price_increases": []})


def show(world: VastWorld, call: Call) -> Reply:
    """A row, or null with 200 for what is gone, foreign, or never was."""
    key = world.authorize(call, "instance_read", call.params["id"])
    instance = _find(world, key, call)
    return Reply({"instances": None if instance is None else _row(world, instance)})


def change(world: VastWorld, call: Call) -> Reply:
    """Stop, start or label."""
    key = world.authorize(call, "instance_write", call.params["id"])
    world.account.note(call, key, world.now)
    instance = _find(world, key, call)
    if instance is None:
        raise no_such_instance(str(call.params["id"]))
    if "label" in call.body:
        if key.instance_id is not None:
            raise refuse(401, "auth_error", "Unauthorized: this key cannot label.")
        instance.label = str(call.body["label"] or "")
        return Reply({"success": True})
    return _change_state(world, instance, call.body.get("state"))


def change_many(world: VastWorld, call: Call) -> Reply:
    world.authorize(call, "instance_write")
    for number in call.body.get("ids") or []:
        instance = world.find(str(number))
        if instance is None:
            raise no_such_instance(str(number))
        _change_state(world, instance, call.body.get("state"))
    return Reply({"success": True})


def destroy(world: VastWorld, call: Call) -> Reply:
    key = world.authorize(call, "instance_write", call.params["id"])
    world.account.note(call, key, world.now)
    instance = _find(world, key, call)
    if instance is None:
        raise no_such_instance(str(call.params["id"]))
    if not world.hide(instance):
        world.destroy(instance)
    return Reply({"success": True})


def destroy_many(world: VastWorld, call: Call) -> Reply:
    key = world.authorize(call, "instance_write")
    world.account.note(call, key, world.now)
    for number in call.body.get("instance_ids") or []:
        instance = world.find(str(number))
        if instance is not None and not world.hidden(instance) and not world.hide(instance):
            world.destroy(instance)
    return Reply({"success": True})


def reboot(world: VastWorld, call: Call) -> Reply:
    world.restart(_known(world, call))
    return Reply({"success": True})


def recycle(world: VastWorld, call: Call) -> Reply:
    world.recycle(_known(world, call))
    return Reply({"success": True})


def bid(world: VastWorld, call: Call) -> Reply:
    """Another bid; without a price, a winning one."""
    instance = _known(world, call)
    floor = instance.machine_offered.min_bid * world.price_factor()
    price = Decimal(str(call.body["price"])) if call.body.get("price") is not None else floor
    instance.gpu_usd_per_hour = price
    if price < floor and not instance.stopped:
        world.stop(instance, "exited")
        instance.outbid = True
    elif instance.stopped:
        world.resume(instance)
    world.rebill(instance)
    return Reply({"success": True})


def prepay(world: VastWorld, call: Call) -> Reply:
    _known(world, call)
    return Reply({"success": True, "timescale": 1.0, "discount_rate": 0.2})


def logs(world: VastWorld, call: Call) -> Reply:
    instance = _known(world, call, "instance_read")
    return Reply(_later(world, f"log-{instance.id}") | {"msg": "log requested"})


def execute(world: VastWorld, call: Call) -> Reply:
    """`ls`, `rm` and `du` only."""
    instance = _known(world, call)
    command = str(call.body.get("command") or "")
    if not command.startswith(EXECUTED) or len(command) > 512:
        raise refuse(400, "invalid_args", "only ls, rm and du can be executed")
    return Reply(_later(world, f"command-{instance.id}") | {"writeable_path": "/tmp/"})


def result(world: VastWorld, call: Call) -> Reply:
    """What a log or a command said, for whoever has the address."""
    return Reply(text=f"{call.params['name']}\n", media_type="text/plain")


def copy(world: VastWorld, call: Call) -> Reply:
    world.authorize(call, "instance_write")
    address = {"src_addr": "127.0.0.1", "src_port": 1, "dst_addr": "127.0.0.1", "dst_port": 1}
    return Reply({"success": True, **address})


def _row(world: VastWorld, instance: Instance) -> dict[str, Any]:
    shown = row(instance, world.now)
    if empty := world.knobs.of("null_fields", instance_id=instance.id):
        shown |= dict.fromkeys(empty["fields"].replace(" ", "").split(","))
    wrong = world.knobs.get("wrong_gpu")
    if wrong and wrong["where"] in ("row", "both"):
        shown["num_gpus"] = (
            max(0, shown["num_gpus"] - 1) if wrong["count"] is None else wrong["count"]
        )
        shown["gpu_name"] = wrong["gpu"] or shown["gpu_name"]
    return shown


def _find(world: VastWorld, key: Key, call: Call) -> Instance | None:
    instance: Instance | None = world.find(str(call.params["id"]))
    return None if instance is None or key.other_account or world.hidden(instance) else instance


def _known(world: VastWorld, call: Call, scope: str = "instance_write") -> Instance:
    key = world.authorize(call, scope)
    world.account.note(call, key, world.now)
    instance = _find(world, key, call)
    if instance is None:
        raise no_such_instance(str(call.params["id"]))
    return instance


def _change_state(world: VastWorld, instance: Instance, wanted: Any) -> Reply:
    if wanted == "stopped":
        if not instance.stopped:
            world.stop(instance, "stopped")
        instance.forget_plans()  # a queued start
        return Reply({"success": True})
    if wanted != "running":
        raise refuse(400, "invalid_args", f"no state {wanted!r}")
    if not instance.stopped:
        return Reply({"success": True})
    if world.credit_usd <= 0:
        raise refuse(400, "insufficient_credit", "Your account lacks credit.")
    if instance.expired:
        raise refuse(400, "invalid_args", "error 400/3612: the rental has ended.")
    queued = world.knobs.get("start_queued")
    if queued is None:
        world.resume(instance)
        return Reply({"success": True})
    if queued["starts_after_s"] is not None:
        start = world.timeline.after(queued["starts_after_s"], lambda: world.resume(instance))
        instance.plans.append(start)
    return Reply({"success": False, "error": "resources_unavailable", "msg": QUEUED})


def _later(world: VastWorld, name: str) -> dict[str, Any]:
    return {"success": True, "result_url": f"http://127.0.0.1:{world.api_port}/results/{name}"}


def _json(call: Call, name: str, default: Any) -> Any:
    text = call.query.get(name)
    if text is None:
        return default
    try:
        return json.loads(text)
    except ValueError as problem:
        raise refuse(400, "invalid_args", f"{name} is not JSON") from problem


def _after(call: Call) -> int | None:
    token = call.query.get("after_token")
    if token is None:
        return None
    try:
        return int(json.loads(base64.urlsafe_b64decode(token))["id"])
    except (ValueError, KeyError, TypeError) as problem:
        raise refuse(400, "invalid_args", "invalid after_token") from problem
