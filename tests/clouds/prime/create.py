"""Creating a pod at the emulated Prime Intellect, with every refusal that was reported.

Facts that shape it: an unknown key in `pod` is a 422, in one of two shapes; what is missing for an
upstream, and what is sold out, are both 400 and only the text tells them apart; any maxPrice that
is not null was accepted, and a real one caps a variable price.
"""

import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from tests.clouds.prime.account import TEAM_ID, invalid, refuse
from tests.clouds.prime.pod import Pod
from tests.clouds.prime.rows import show_pod
from tests.clouds.prime.skus import UBUNTU, Sku
from tests.clouds.prime.world import PrimeWorld
from tests.clouds.wire import Call, Refusal, Reply

REQUIRED = {"cloudId": str, "gpuType": str, "socket": str, "gpuCount": int}
OPTIONAL = {
    *("name", "diskSize", "vcpus", "memory", "maxPrice", "dataCenterId", "country", "security"),
    *("image", "customTemplateId", "envVars", "jupyterPassword", "sshKeyId", "autoRestart"),
    "prepaidForHr",
}
SOLD_OUT = "Requested GPU is currently unavailable in this dataCenter"


def create_pod(world: PrimeWorld, call: Call) -> Reply:
    world.authorize(call, "instances", write=True)
    wanted = _validate(world, call.body)
    team = (call.body.get("team") or {}).get("teamId")
    if team is not None and team != TEAM_ID:
        raise refuse(403, "Not authenticated")
    if team is None and world.credit_usd <= 0:
        raise refuse(402, "Insufficient funds")
    limit = world.knobs.get("instance_limit")
    if limit and sum(pod.alive for pod in world.pods()) >= limit["limit"]:
        raise refuse(400, f"Maximum number of instances reached. Limit: {limit['limit']}")
    sku = _choose(world, wanted, (call.body.get("provider") or {}).get("type"))
    disk_gb = int(wanted.get("diskSize") or sku.disk_gb[1])
    price = sku.price_with(disk_gb) * world.price_factor()
    cap = wanted.get("maxPrice")
    # true and 0 were seen to be taken; a price that is one caps what is variable.
    if sku.is_variable and not isinstance(cap, bool) and cap and Decimal(str(cap)) < price:
        raise refuse(400, SOLD_OUT)
    pod = Pod(
        id=uuid.uuid4().hex,
        label=str(wanted.get("name") or f"{sku.gpu_type.lower()}-{sku.gpu_count}"),
        spec=world.spec(sku, disk_gb),
        made_at=world.now,
        state="PROVISIONING",
        sku=sku,
        usd_per_hour=price,
        disk_size_gb=disk_gb,
        image=str(wanted.get("image") or UBUNTU),
        env={str(each["key"]): str(each["value"]) for each in wanted.get("envVars") or []},
        team_id=team,
        ssh_key_id=wanted.get("sshKeyId"),
        disks=tuple(call.body.get("disks") or ()),
    )
    world.start(pod)
    world.add(pod)
    return Reply(show_pod(world, pod))


def _validate(world: PrimeWorld, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The order's pod, if it is one by the schema."""
    setting = world.knobs.get("validation_shape")
    shape = setting["shape"] if setting else "detail"
    pod = body.get("pod")
    if not isinstance(pod, Mapping):
        raise invalid(("pod",), "Field required", "missing", shape)
    for name, kind in REQUIRED.items():
        if pod.get(name) is None:
            raise invalid(("pod", name), "Field required", "missing", shape)
        if not isinstance(pod[name], kind) or isinstance(pod[name], bool):
            problem = f"Input should be a valid {kind.__name__}"
            raise invalid(("pod", name), problem, f"{kind.__name__}_type", shape)
    for name in pod:
        if name not in REQUIRED and name not in OPTIONAL:
            problem = "Extra inputs are not permitted"
            raise invalid(("pod", name), problem, "extra_forbidden", shape)
    if not (body.get("provider") or {}).get("type"):
        raise invalid(("provider", "type"), "Field required", "missing", shape)
    return pod


def _choose(world: PrimeWorld, wanted: Mapping[str, Any], provider: str | None) -> Sku:
    """The row that the order repeats; what it leaves out is not compared."""
    left_out = {"dataCenterId": "data_center", "country": "country", "security": "security"}
    found = [
        sku
        for sku in world.skus
        if (sku.cloud_id, sku.gpu_type, sku.socket) == tuple(wanted[n] for n in list(REQUIRED)[:3])
        and (sku.gpu_count, sku.provider) == (wanted["gpuCount"], provider)
        and all(
            wanted.get(name) in (None, getattr(sku, column)) for name, column in left_out.items()
        )
    ]
    gone = world.knobs.hit("offer_gone")
    if gone or not found or found[0].stock == "Unavailable":
        raise refuse((gone and gone["status"]) or 400, SOLD_OUT)
    sku = found[0]
    if sku.needs_data_center and wanted.get("dataCenterId") is None:
        raise _missing("data_center_id")
    if wanted.get("maxPrice") is None and (
        sku.needs_max_price or world.knobs.get("max_price_needed")
    ):
        raise _missing("max_price")
    image = wanted.get("image") or UBUNTU
    if sku.images is not None and image not in sku.images:
        raise refuse(
            400, f"Provider {sku.provider.capitalize()} is not supported for image {image}"
        )
    if sku.is_spot and wanted.get("prepaidForHr"):
        raise refuse(400, "Reserved instances are not available")
    return sku


def _missing(name: str) -> Refusal:
    return refuse(400, f"Missing field: {name} not specified")
