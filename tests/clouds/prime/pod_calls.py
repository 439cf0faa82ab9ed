"""The calls about pods: list, show, status, history, log, delete.

Facts that shape it: a pod is not wrapped, a list is; an unknown id is left out of a status; the
second DELETE is 404; history and its totals lag.
"""

from datetime import timedelta

from tests.clouds.clock import seconds
from tests.clouds.meter import HOUR_S, ZERO
from tests.clouds.prime.account import USER_ID, iso, refuse
from tests.clouds.prime.pod import Disk, Pod, status_row
from tests.clouds.prime.rows import listed_pods, page, show_pod
from tests.clouds.prime.world import PrimeWorld
from tests.clouds.wire import Call, Refusal, Reply

NOT_FOUND = "Pod not found"


def list_pods(world: PrimeWorld, call: Call) -> Reply:
    other = world.authorize(call, "instances")
    pods = [] if other else listed_pods(world)
    return Reply(page(world, call, [show_pod(world, pod) for pod in pods], lists=True))


def show(world: PrimeWorld, call: Call) -> Reply:
    pod = _find(world, call, write=False)
    if world.knobs.hit("pod_404"):
        raise refuse(404, NOT_FOUND)
    return Reply(show_pod(world, pod))


def statuses(world: PrimeWorld, call: Call) -> Reply:
    other = world.authorize(call, "instances")
    wanted = [] if other else call.query.getlist("pod_ids")
    pods = [pod for pod in world.pods() if pod.id in wanted and pod.alive]
    return Reply({"data": [status_row(show_pod(world, pod)) for pod in pods]})


def delete(world: PrimeWorld, call: Call) -> Reply:
    pod = _find(world, call, write=True)
    if not pod.alive:
        raise refuse(404, NOT_FOUND)
    if not world.hide(pod):
        world.delete(pod)
    if world.knobs.hit("delete_404"):
        raise refuse(404, NOT_FOUND)
    return Reply({"status": "TERMINATED"})


def history(world: PrimeWorld, call: Call) -> Reply:
    """What is over, with what it cost in the end; late, where a knob says so."""
    other = world.authorize(call, "instances")
    setting = world.knobs.get("history_lag_s")
    lag = timedelta(seconds=setting["seconds"] if setting else 0)
    over = [
        rental
        for rental in ([] if other else world.rentals)
        if rental.gone_at is not None and rental.gone_at + lag <= world.now
    ]
    column = "made_at" if call.query.get("sort_by") == "createdAt" else "gone_at"
    ascending = call.query.get("sort_order") == "asc"
    over.sort(key=lambda rental: getattr(rental, column), reverse=not ascending)
    return Reply(page(world, call, [_past(world, rental) for rental in over], lists=False))


def log(world: PrimeWorld, call: Call) -> Reply:
    pod = _find(world, call, write=False)
    return Reply({"logs": f"{pod.label}: {pod.installation.lower()}"})


def _find(world: PrimeWorld, call: Call, write: bool) -> Pod:
    """By id: the living, and the dead where they linger."""
    other = world.authorize(call, "instances", write=write)
    wanted = call.params["id"]
    for pod in world.pods():
        lingers = pod.deleted_listed_until and world.now < pod.deleted_listed_until
        if pod.id == wanted and (pod.alive or lingers) and not other and not world.hidden(pod):
            return pod
    raise Refusal(Reply({"detail": NOT_FOUND}, 404))


def _past(world: PrimeWorld, rental: Pod | Disk) -> dict[str, object]:
    billed = rental.meter.usd(world.now)
    assert rental.gone_at is not None
    lived_s = seconds(rental.gone_at - rental.made_at)
    is_pod = isinstance(rental, Pod)
    return {
        "id": rental.id,
        "name": rental.label,
        "providerType": rental.sku.provider if isinstance(rental, Pod) else rental.provider,
        "provisionedBy": USER_ID,
        "type": "Instance" if is_pod else "Disk",
        "createdAt": iso(rental.made_at),
        "terminatedAt": iso(rental.gone_at),
        "gpuName": rental.sku.gpu_type if isinstance(rental, Pod) else "CPU_NODE",
        "gpuCount": rental.sku.gpu_count if isinstance(rental, Pod) else 0,
        "socket": rental.sku.socket if isinstance(rental, Pod) else None,
        "priceHr": billed * HOUR_S / lived_s if lived_s else ZERO,
        "userId": USER_ID,
        "teamId": rental.team_id,
        "totalBilledPrice": billed,
    }
