"""The calls about the account and the market: user, offers, SSH keys, charges.

Facts that shape it: a search needs no key; the list of SSH keys is 404 when there are none; charges
want both bounds of their days, and are there the day after.
"""

import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from tests.clouds.vast.account import OTHER_USER_ID, USER_ID, no_such_instance, refuse
from tests.clouds.vast.create import offers
from tests.clouds.vast.instance import Instance
from tests.clouds.vast.machines import CHIPS
from tests.clouds.vast.search import BadQuery
from tests.clouds.vast.world import VastWorld
from tests.clouds.wire import Call, Reply

DAY = timedelta(days=1)


def gpu_names(world: VastWorld, call: Call) -> Reply:
    return Reply({"gpu_names": sorted({chip.name for chip in CHIPS})})


def gpu_types(world: VastWorld, call: Call) -> Reply:
    return Reply({"gpu_types": [{"name": chip.name, "vram_mb": chip.memory_mb} for chip in CHIPS]})


def user(world: VastWorld, call: Call) -> Reply:
    key = world.authorize(call, "user_read")
    credit = Decimal(50) if key.other_account else world.credit_usd
    card = world.knobs.get("autobilling")
    return Reply(
        {
            "id": OTHER_USER_ID if key.other_account else USER_ID,
            "email": "somebody@example.org" if key.other_account else "renter@example.org",
            "username": "somebody" if key.other_account else "renter",
            "credit": credit,
            "balance": Decimal(0),
            "balance_threshold": Decimal(0),
            "balance_threshold_enabled": False,
            "autobill_threshold": card["below_usd"] if card else None,
            "autobill_amount": 5 * card["below_usd"] if card else None,
            "has_billing": card is not None,
            "can_pay": True,
            "email_verified": True,
            "host_agreement_accepted": False,
            "api_key": call.key,
        }
    )


def search_offers(world: VastWorld, call: Call) -> Reply:
    return _search(world, call, call.body)


def search_asks(world: VastWorld, call: Call) -> Reply:
    return _search(world, call, call.body.get("q") or {})


def ssh_keys(world: VastWorld, call: Call) -> Reply:
    """The account's keys; 404 when there are none."""
    key = world.authorize(call, "user_read")
    if key.other_account or not world.account.ssh_keys:
        raise refuse(404, "not_found", "No SSH keys found.")
    return Reply(list(world.account.ssh_keys.values()))


def add_ssh_key(world: VastWorld, call: Call) -> Reply:
    world.authorize(call, "user_write")
    made = world.account.add_ssh_key(_public_key(call), world.now)
    return Reply({"success": True, "key": made})


def change_ssh_key(world: VastWorld, call: Call) -> Reply:
    world.authorize(call, "user_write")
    known = world.account.ssh_keys.get(int(call.params["id"]))
    if known is None:
        raise refuse(404, "not_found", "No such SSH key.")
    text = _public_key(call)
    known |= {"key": text, "public_key": text}
    return Reply({"success": True, "key": known})


def remove_ssh_key(world: VastWorld, call: Call) -> Reply:
    world.authorize(call, "user_write")
    if world.account.ssh_keys.pop(int(call.params["id"]), None) is None:
        raise refuse(404, "not_found", "No such SSH key.")
    return Reply({"success": True})


def instance_keys(world: VastWorld, call: Call) -> Reply:
    """As documented, the keys are a JSON text inside of the JSON."""
    instance = _instance(world, call, "instance_read")
    keys = [{"id": number, "public_key": text} for number, text in instance.attached.items()]
    return Reply({"success": True, "ssh_keys": json.dumps(keys)})


def attach_key(world: VastWorld, call: Call) -> Reply:
    instance = _instance(world, call, "instance_write")
    instance.attached[world.account.new_id()] = _public_key(call)
    if instance.status == "running" and instance.box is not None:
        instance.box.authorize(world.keys_of(instance))
    return Reply({"success": True, "msg": "SSH key added to instance."})


def detach_key(world: VastWorld, call: Call) -> Reply:
    instance = _instance(world, call, "instance_write")
    if instance.attached.pop(int(call.params["key"]), None) is None:
        raise refuse(404, "not_found", "No such SSH key on this instance.")
    if instance.status == "running" and instance.box is not None:
        instance.box.authorize(world.keys_of(instance))
    return Reply({"success": True})


def charges(world: VastWorld, call: Call) -> Reply:
    """What each contract cost, day by day: a day is there from the next day (UTC) on."""
    key = world.authorize(call, "billing_read")
    try:
        bounds = json.loads(call.query["select_filters"])["day"]
        since, until = (datetime.fromtimestamp(bounds[name], UTC) for name in ("gte", "lte"))
    except (KeyError, ValueError, TypeError) as problem:
        raise refuse(400, "invalid_args", "both bounds of day are needed") from problem
    for instance in world.living():
        world.read_traffic(instance)
    results = [
        charge
        for instance in ([] if key.other_account else world.rentals)
        for charge in _charges(instance, since, until, world.now)
    ]
    limit = int(call.query.get("limit", 20))
    start = int(call.query.get("after_token", 0))
    page = results[start : start + limit]
    token = str(start + limit) if start + limit < len(results) else None
    more = {"count": len(page), "total": len(results), "next_token": token}
    return Reply({"success": True, "results": page, **more})


def invoices(world: VastWorld, call: Call) -> Reply:
    world.authorize(call, "billing_read")
    return Reply({"success": True, "results": [], "count": 0, "total": 0, "next_token": None})


def audit_log(world: VastWorld, call: Call) -> Reply:
    world.authorize(call, "misc")
    return Reply(world.account.audit)


def _search(world: VastWorld, call: Call, query: Any) -> Reply:
    if call.key is not None:
        world.authorize(call, "misc")
    if world.knobs.get("search_quota"):
        midnight = world.now.replace(hour=0, minute=0, second=0, microsecond=0) + DAY
        msg = "Daily search quota exceeded"
        body = {"success": False, "error": "search_quota_exceeded", "msg": msg}
        return Reply(body, 429, {"x-ratelimit-reset": str(int(midnight.timestamp()))})
    try:
        return Reply({"offers": offers(world, query)})
    except BadQuery as problem:
        raise refuse(400, "invalid_args", str(problem)) from problem


def _public_key(call: Call) -> str:
    text = str(call.body.get("ssh_key") or "").strip()
    if not text.startswith(("ssh-", "ecdsa-", "sk-")) or len(text.split()) < 2:
        raise refuse(400, "invalid_args", "invalid ssh public key")
    return text


def _instance(world: VastWorld, call: Call, scope: str) -> Instance:
    key = world.authorize(call, scope)
    instance: Instance | None = world.find(str(call.params["id"]))
    if instance is None or key.other_account:
        raise no_such_instance(str(call.params["id"]))
    return instance


def _charges(
    instance: Instance, since: datetime, until: datetime, now: datetime
) -> list[dict[str, Any]]:
    """The finished days of one contract."""
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    days: dict[datetime, dict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    for span in instance.meter.spans(now):
        at = span.since
        while at < span.until:
            day = at.replace(hour=0, minute=0, second=0, microsecond=0)
            end = min(span.until, day + DAY)
            part = type(span)(span.item, at, end, span.usd_per_hour)
            days[day][span.item] += part.usd
            at = end
    if instance.meter.charged:  # traffic is put to the day on which the contract ended
        ended = instance.gone_at or now
        day = ended.replace(hour=0, minute=0, second=0, microsecond=0)
        for item, usd in instance.meter.charged.items():
            days[day][item] += usd
    return [
        {
            "start": day.timestamp(),
            "end": (day + DAY).timestamp(),
            "type": "instance",
            "source": f"instance-{instance.id}",
            "description": f"Instance {instance.id}",
            "amount": sum(items.values(), Decimal(0)),
            "metadata": {"instance_id": int(instance.id), "label": instance.label},
            "items": [
                {
                    "start": day.timestamp(),
                    "end": (day + DAY).timestamp(),
                    "type": item,
                    "source": None,
                    "description": item,
                    "amount": usd,
                    "metadata": {},
                    "items": [],
                }
                for item, usd in items.items()
            ],
        }
        for day, items in sorted(days.items())
        if since <= day <= until and day < today
    ]
