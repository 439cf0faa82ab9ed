"""The calls about the market and the account: availability, disks, SSH keys, wallet, teams.

Facts that shape it: availability is paged from 1, its total is the sum over pages; an empty page
with 200 has been seen; a team's wallet is asked for by query.
"""

import uuid
from decimal import Decimal
from typing import Any

from tests.clouds.boxes import Spec
from tests.clouds.prime.account import (
    AREAS,
    OTHER_USER_ID,
    TEAM_ID,
    TEAM_WALLET_ID,
    USER_ID,
    WALLET_ID,
    iso,
    refuse,
)
from tests.clouds.prime.pod import DISK_USD_PER_GB_HOUR, Disk
from tests.clouds.prime.rows import attached_to, page
from tests.clouds.prime.skus import Sku
from tests.clouds.prime.world import TEAM_CREDIT_USD, PrimeWorld
from tests.clouds.wire import Call, Reply

PAGE_MOST = 100
LEGACY_PAGE = 500


def gpus(world: PrimeWorld, call: Call) -> Reply:
    return _offers(world, call, [sku for sku in world.skus if sku.nodes == 1])


def clusters(world: PrimeWorld, call: Call) -> Reply:
    return _offers(world, call, [sku for sku in world.skus if sku.nodes > 1])


def legacy(world: PrimeWorld, call: Call) -> Reply:
    """By GPU type, as it was before."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in _rows(world, call, [sku for sku in world.skus if sku.nodes == 1])[:LEGACY_PAGE]:
        found.setdefault(row["gpuType"], []).append(row)
    return Reply(found)


def summary(world: PrimeWorld, call: Call) -> Reply:
    found: dict[str, dict[str, Any]] = {}
    for row in _rows(world, call, [sku for sku in world.skus if sku.nodes == 1]):
        prices = row["prices"]
        cheapest = found.setdefault(row["gpuType"], {}).setdefault(str(row["gpuCount"]), {})
        best = cheapest.setdefault("cheapest", dict.fromkeys(("onDemand", "communityPrice")))
        kind = "spotPrice" if row["isSpot"] else "onDemand"
        best[kind] = min(filter(None, (best.get(kind), prices["onDemand"])))
    return Reply(found)


def disk_offers(world: PrimeWorld, call: Call) -> Reply:
    world.authorize(call, "availability")
    spec = {
        "minCount": 10,
        "defaultCount": 100,
        "maxCount": 8000,
        "pricePerUnit": DISK_USD_PER_GB_HOUR,
        "step": 1,
        "defaultIncludedInPrice": False,
        "additionalInfo": None,
    }
    places = {(sku.provider, sku.data_center): sku for sku in world.skus if sku.data_center}
    items = [
        {
            "cloudId": f"disk-{sku.provider}",
            "provider": sku.provider,
            "dataCenter": sku.data_center,
            "country": sku.country,
            "region": sku.region,
            "spec": spec,
            "stockStatus": "Available",
            "security": sku.security,
            "isMultinode": False,
        }
        for sku in places.values()
    ]
    return _paged(call, items)


def whoami(world: PrimeWorld, call: Call) -> Reply:
    other = world.authorize(call, "user")
    scope = {
        area: {"read": world.may(area, False), "write": world.may(area, True)} for area in AREAS
    }
    return Reply(
        {
            "data": {
                "id": OTHER_USER_ID if other else USER_ID,
                "email": "somebody@example.org" if other else "renter@example.org",
                "name": "Somebody" if other else "Renter",
                "slug": "somebody" if other else "renter",
                "scope": scope,
                "account_limits": None,
                "key_limits": None,
            }
        }
    )


def teams(world: PrimeWorld, call: Call) -> Reply:
    other = world.authorize(call, "user")
    team = {"teamId": TEAM_ID, "name": "Lab", "slug": "lab", "role": "ADMIN", "createdAt": "2026"}
    return Reply(page(world, call, [] if other else [team], lists=False))


def members(world: PrimeWorld, call: Call) -> Reply:
    world.authorize(call, "user")
    if call.params["id"] != TEAM_ID:
        raise refuse(404, "Team not found")
    member = {"userId": USER_ID, "userName": "Renter", "userEmail": "renter@example.org"}
    return Reply({"data": [member | {"role": "ADMIN"}]})


def wallet(world: PrimeWorld, call: Call) -> Reply:
    """The personal wallet, or the team's that the query names."""
    other = world.authorize(call, "billing")
    team = call.query.get("teamId")
    if team not in (None, TEAM_ID):
        raise refuse(404, "Team not found")
    billed = [each for each in world.rentals if each.team_id == team and not other]
    spent = sum((each.meter.usd(world.now) for each in billed), Decimal(0))
    balance = TEAM_CREDIT_USD - spent if team else world.credit_usd
    offset, limit = int(call.query.get("offset", 0)), int(call.query.get("limit", 20))
    rows = [
        {
            "id": f"bill-{each.id}",
            "created_at": iso(each.made_at),
            "updated_at": iso(world.now),
            "last_billed_at": iso(each.gone_at or world.now),
            "amount_usd": each.meter.usd(world.now),
            "currency": "USD",
            "resource_type": "Disk" if isinstance(each, Disk) else "Instance",
            "resource_id": each.id,
        }
        for each in reversed(billed)
    ]
    return Reply(
        {
            "wallet_id": TEAM_WALLET_ID if team else WALLET_ID,
            "team_id": team,
            "balance_usd": Decimal(50) if other else balance,
            "currency": "USD",
            "total_billings": len(rows),
            "recent_billings": rows[offset : offset + limit],
        }
    )


def ssh_keys(world: PrimeWorld, call: Call) -> Reply:
    other = world.authorize(call, "ssh_keys")
    keys = [] if other else list(world.account.ssh_keys.values())
    return Reply(page(world, call, keys, lists=False))


def add_ssh_key(world: PrimeWorld, call: Call) -> Reply:
    world.authorize(call, "ssh_keys", write=True)
    text = str(call.body.get("publicKey") or "")
    if len(text.split()) < 2:
        raise refuse(400, "Invalid public key")
    return Reply(world.account.add_ssh_key(str(call.body.get("name")), text, world.now))


def change_ssh_key(world: PrimeWorld, call: Call) -> Reply:
    """Make it the primary one."""
    world.authorize(call, "ssh_keys", write=True)
    keys = world.account.ssh_keys
    if call.params["id"] not in keys:
        raise refuse(404, "SSH key not found")
    if call.body.get("isPrimary"):
        for number, key in keys.items():
            key["isPrimary"] = number == call.params["id"]
    return Reply({"message": "SSH key updated", "updated_fields": list(call.body)})


def remove_ssh_key(world: PrimeWorld, call: Call) -> Reply:
    world.authorize(call, "ssh_keys", write=True)
    if world.account.ssh_keys.pop(call.params["id"], None) is None:
        raise refuse(404, "SSH key not found")
    return Reply({"message": "SSH key deleted"})


def list_disks(world: PrimeWorld, call: Call) -> Reply:
    other = world.authorize(call, "disks")
    disks = [] if other else world.disks()
    rows = [disk.row(attached_to(world, disk)) for disk in disks]
    return Reply(page(world, call, rows, lists=False))


def create_disk(world: PrimeWorld, call: Call) -> Reply:
    world.authorize(call, "disks", write=True)
    wanted = call.body.get("disk") or {}
    if int(wanted.get("size") or 0) <= 0:
        raise refuse(400, "Missing field: size not specified")
    team = (call.body.get("team") or {}).get("teamId")
    if team is None and world.credit_usd <= 0:
        raise refuse(402, "Insufficient funds")
    disk = Disk(
        id=uuid.uuid4().hex,
        label=str(wanted.get("name") or "disk"),
        spec=Spec("", 0, int(wanted["size"])),
        made_at=world.now,
        state="ACTIVE",
        size_gb=int(wanted["size"]),
        cloud_id=wanted.get("cloudId"),
        provider=str((call.body.get("provider") or {}).get("type") or ""),
        data_center=wanted.get("dataCenterId"),
        country=wanted.get("country"),
        team_id=team,
    )
    world.rentals.append(disk)
    world.rebill(disk)
    return Reply(disk.row([]))


def show_disk(world: PrimeWorld, call: Call) -> Reply:
    disk = _disk(world, call, write=False)
    return Reply(disk.row(attached_to(world, disk)))


def change_disk(world: PrimeWorld, call: Call) -> Reply:
    disk = _disk(world, call, write=True)
    disk.label = str(call.body.get("name") or disk.label)
    return Reply(disk.row(attached_to(world, disk)))


def remove_disk(world: PrimeWorld, call: Call) -> Reply:
    world.destroy(_disk(world, call, write=True))
    return Reply({"status": "TERMINATED"})


def _disk(world: PrimeWorld, call: Call, write: bool) -> Disk:
    other = world.authorize(call, "disks", write=write)
    for disk in world.disks():
        if disk.id == call.params["id"] and not other:
            return disk
    raise refuse(404, "Disk not found")


def _rows(world: PrimeWorld, call: Call, skus: list[Sku]) -> list[dict[str, Any]]:
    """The rows that the query asks for."""
    world.authorize(call, "availability")
    if world.knobs.hit("search_empty"):
        return []
    currency = "EUR" if world.knobs.get("currency_eur") else "USD"
    filters: dict[str, list[Any]] = {
        "gpuType": call.query.getlist("gpu_type"),
        "socket": call.query.getlist("socket"),
        "security": call.query.getlist("security"),
        "dataCenter": call.query.getlist("data_center_id"),
        "cloudId": call.query.getlist("cloud_id"),
        "region": call.query.getlist("regions"),
        "gpuCount": [int(count) for count in call.query.getlist("gpu_count")],
    }
    rows = [sku.row(world.price_factor(), currency) for sku in skus]
    return [
        row
        for row in rows
        if all(not wanted or row[column] in wanted for column, wanted in filters.items())
    ]


def _offers(world: PrimeWorld, call: Call, skus: list[Sku]) -> Reply:
    return _paged(call, _rows(world, call, skus))


def _paged(call: Call, rows: list[dict[str, Any]]) -> Reply:
    size = min(int(call.query.get("page_size", PAGE_MOST)), PAGE_MOST)
    start = (int(call.query.get("page", 1)) - 1) * size
    return Reply({"items": rows[start : start + size], "totalCount": len(rows)})
