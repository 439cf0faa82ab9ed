"""An order to Prime Intellect, and what its answer means.

Facts that shape it: a body with a key too many is refused; the offer's row is repeated word for
word; `maxPrice` is the one cap that the server keeps, and some upstreams refuse an order without
it; 400 is both a mistake and a sold-out GPU; a refusal that is no JSON may hide a pod.
"""

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from gpurun.errors import AccountRefused, CreateFailedButMade, CreateUnclear, NoCapacity
from gpurun.model import Created, Order
from provisioners.prime.api import Answer, NoAnswer
from provisioners.prime.money import amount

PRICE_SLACK = Decimal("1.02")  # what an offer may rise by until it is bought
SOLD_OUT = "currently unavailable"
ACCOUNT_FULL = "Maximum number of instances"
CURES = {
    401: "run `gpurun auth prime`",
    402: "add funds to the wallet",
    403: "give the key the permission Instances (read and write)",
}


def most_usd_per_hour(order: Order) -> Decimal:
    return min(order.max_usd_per_hour, order.offer.usd_per_hour * PRICE_SLACK)


def body(order: Order, team_id: str | None, ssh_key_id: str | None) -> dict[str, Any]:
    """What is posted; NoCapacity for an offer that is not one of ours."""
    try:
        echo = json.loads(order.offer.echo)
        repeated, provider = echo["pod"], echo["provider"]
    except (ValueError, KeyError, TypeError):
        raise NoCapacity(
            f"{order.offer.id} was not read from prime by this gpurun; nothing was made"
        ) from None
    pod = {name: value for name, value in repeated.items() if value is not None}
    pod |= {
        "name": order.label,
        "maxPrice": float(most_usd_per_hour(order)),
        "autoRestart": False,
    }
    if ssh_key_id is not None:
        pod["sshKeyId"] = ssh_key_id
    team = {"team": {"teamId": team_id}} if team_id else {}
    return {"pod": pod, "provider": provider, **team}


def made(answer: Answer, order: Order, team_id: str | None) -> Created:
    """The pod, if there surely is one and it is what was ordered."""
    where = f"prime offer {order.offer.id}"
    pod = answer.body or {}
    pod_id = pod.get("id")
    if isinstance(pod_id, str) and pod_id:
        if wrong := [*([] if answer.ok else ["refused"]), *_misfits(pod, order, team_id)]:
            raise CreateFailedButMade(
                f"{where} became pod {pod_id}, which is not what was ordered: {'; '.join(wrong)}",
                pod_id,
            )
        return Created(pod_id)
    if not _is_refusal(answer):
        raise CreateUnclear(
            f"{where}: {answer.status} {answer.detail}: a pod named {order.label} may exist"
        )
    said = f"{where} was refused, nothing was made: {answer.status} {answer.detail}"
    if answer.status in CURES:
        raise AccountRefused(f"{said}: {CURES[answer.status]}")
    if ACCOUNT_FULL in answer.detail:
        raise AccountRefused(f"{said}: end another pod first; `gpurun orphans` lists them")
    raise NoCapacity(said)


def unanswered(error: NoAnswer, order: Order) -> CreateUnclear | NoCapacity:
    if not error.sent:
        return NoCapacity(f"prime cannot be reached, nothing was made: {error}")
    return CreateUnclear(
        f"prime gave no answer to renting {order.offer.id}: {error}: "
        f"a pod named {order.label} may exist"
    )


def _is_refusal(answer: Answer) -> bool:
    """A redirect and a refusal in JSON were not carried out; a gateway's error may have been."""
    if 300 <= answer.status < 400:
        return True
    if answer.body is None or answer.ok:
        return False
    return SOLD_OUT in answer.detail if answer.status >= 500 else answer.status != 408


def _misfits(pod: Mapping[str, Any], order: Order, team_id: str | None) -> list[str]:
    wanted = json.loads(order.offer.echo)
    most, rate = most_usd_per_hour(order), amount(pod.get("priceHr"))
    told = [
        ("GPU", pod.get("gpuName"), wanted["pod"].get("gpuType")),
        ("GPUs", pod.get("gpuCount"), wanted["pod"].get("gpuCount")),
        ("socket", pod.get("socket"), wanted["pod"].get("socket")),
        ("spot", pod.get("isSpot"), wanted["spot"]),
        ("name", pod.get("name"), order.label),
        ("team", pod.get("teamId"), team_id),
    ]
    found = [
        f"its {what} is {got}, not {want}"
        for what, got, want in told
        if got != want and (got is not None or what == "team")
    ]
    if rate is not None and rate > most:
        found.append(f"it costs ${rate}/h, at most ${most}/h was allowed")
    return found
