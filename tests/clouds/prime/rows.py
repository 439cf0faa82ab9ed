"""How the emulated Prime Intellect shows pods, with every knob that changes a row or a list."""

from typing import Any

from tests.clouds.prime.pod import Disk, Pod, pod_row
from tests.clouds.prime.world import PrimeWorld
from tests.clouds.wire import Call, Refusal, broken


def show_pod(world: PrimeWorld, pod: Pod) -> dict[str, Any]:
    shape = world.knobs.get("ssh_shape")
    disks = [disk for disk in world.disks() if disk.id in pod.disks]
    row = pod_row(pod, shape["shape"] if shape else None, disks)
    if empty := world.knobs.of("null_fields", instance_id=pod.id):
        row |= dict.fromkeys(empty["fields"].replace(" ", "").split(","))
    if world.knobs.get("fractional_numbers"):
        row["installationProgress"] = 40.5
    wrong = world.knobs.get("wrong_gpu")
    if wrong and wrong["where"] in ("row", "both"):
        fewer = max(0, row["gpuCount"] - 1)
        row["gpuCount"] = fewer if wrong["count"] is None else wrong["count"]
        row["gpuName"] = wrong["gpu"] or row["gpuName"]
    return row


def listed_pods(world: PrimeWorld) -> list[Pod]:
    """What a list of pods shows: the living, and the dead where they linger."""
    lingering = [
        pod
        for pod in world.pods()
        if not pod.alive and pod.deleted_listed_until and world.now < pod.deleted_listed_until
    ]
    living = [pod for pod in world.pods() if pod.alive]
    if world.knobs.get("team_pods_hidden"):
        living = [pod for pod in living if pod.team_id is None]
    return [*world.visible(living), *lingering]


def attached_to(world: PrimeWorld, disk: Disk) -> list[str]:
    return [pod.id for pod in world.pods() if pod.alive and disk.id in pod.disks]


def page(world: PrimeWorld, call: Call, rows: list[dict[str, Any]], lists: bool) -> dict[str, Any]:
    """`offset` and `limit` of a list; `lists` if the knobs of lists are for it."""
    offset, limit = int(call.query.get("offset", 0)), int(call.query.get("limit", 100))
    fails = world.knobs.of("list_page_fails") if lists else None
    if fails and offset // max(1, limit) + 1 == fails["page"]:
        world.knobs.hit("list_page_fails")
        raise Refusal(broken(fails["status"], "json"))
    wrong = world.knobs.get("total_wrong") if lists else None
    return {
        "total_count": len(rows) + (wrong["by"] if wrong else 0),
        "offset": offset,
        "limit": limit,
        "data": rows[offset : offset + limit],
    }
