"""`PUT /asks/ID/`: the one request that costs money, and what each answer to it means.

Facts that shape it: it is not idempotent, so it is sent once; a refusal may carry the id of an
instance that was made all the same; `no_such_ask` comes with 400, 404, 410, and may be the answer
to a replay of a request that did make one; without `cancel_unavail` an offer that is gone, or a bid
that is too low, parks a stopped instance that bills its disk; without `price` a bid is a purchase
at the full price.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import httpx

from gpurun.errors import (
    AccountRefused,
    CreateFailedButMade,
    CreateUnclear,
    NoCapacity,
    ProviderError,
)
from gpurun.model import Created, Order
from provisioners.vast import onstart
from provisioners.vast.listing import instances
from provisioners.vast.market import disk_gb, image
from provisioners.vast.wire import TOO_FREQUENT, V0, Answer, Wire, trouble

RUNTYPE = "ssh_direc ssh_proxy"  # sic: as the official client spells direct and proxied SSH
LABEL_MOST = 256
_ACCOUNT = ("insufficient_credit", "spend_rate_limit", "lacks credit", "auth_error")


def rent(name: str, wire: Wire, order: Order, keys: Iterable[str], now: datetime) -> Created:
    """Sent once.  Only an answer that proves that nothing was made is a refusal."""
    offer = order.offer
    if offer.usd_per_hour > order.max_usd_per_hour:
        raise NoCapacity(
            f"vast offer {offer.id} costs ${offer.usd_per_hour}/h, more than the "
            f"${order.max_usd_per_hour}/h allowed; nothing was made"
        )
    if not offer.id.isdecimal() or not 0 < len(order.label) <= LABEL_MOST:
        raise NoCapacity(f"vast cannot rent {offer.id!r} as {order.label!r}; nothing was made")
    what, body = f"renting offer {offer.id}", request(order, keys, now)
    try:
        answer = wire.send("PUT", f"{V0}/asks/{offer.id}/", body=body)
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise NoCapacity(f"vast cannot be reached for {what}: {trouble(error)}") from None
    except httpx.RequestError as error:
        raise CreateUnclear(f"vast: no answer to {what}: {trouble(error)}") from None
    return _meaning(name, wire, order, answer, what)


def request(order: Order, keys: Iterable[str], now: datetime) -> dict[str, Any]:
    offer, env = order.offer, onstart.environment(order)
    body = {
        "client_id": "me",
        "image": image(order.need),
        "env": env,
        "disk": disk_gb(order.need),
        "label": order.label,
        "onstart": onstart.script(order, env, keys, now),
        "runtype": RUNTYPE,
        "cancel_unavail": True,
        "target_state": "running",
    }
    return body | ({"price": offer.bid_usd_per_hour} if offer.spot else {})


def _meaning(name: str, wire: Wire, order: Order, answer: Answer, what: str) -> Created:
    made = _made(answer.fields)
    if made and answer.ok and answer.fields.get("success") is True:
        key = answer.fields.get("instance_api_key")
        return Created(made, key if isinstance(key, str) else "")
    if made:
        raise CreateFailedButMade(
            f"vast refused {what} ({_said(answer)}), yet made instance {made}, which bills", made
        )
    if answer.status >= 500 or (answer.status < 400 and "no_such_ask" not in answer.error):
        raise CreateUnclear(f"vast: {what} was answered {answer.status}: {_said(answer)}")
    if "no_such_ask" in answer.error:
        return _taken_by_us(name, wire, order, what)
    if answer.status == 429 and (answer.body is not None or answer.said.startswith(TOO_FREQUENT)):
        raise NoCapacity(f"vast: asked too often for {what}; nothing was made: {answer.said}")
    if answer.body is None:
        raise CreateUnclear(f"vast: {what} was answered {answer.status}: {answer.said}")
    if answer.wrong_key or any(word in answer.error for word in _ACCOUNT):
        raise AccountRefused(
            f"vast refused {what} because of the account: {_said(answer)}. Nothing was made. "
            "See `gpurun doctor`"
        )
    raise NoCapacity(f"vast refused {what}: {_said(answer)}. Nothing was made")


def _taken_by_us(name: str, wire: Wire, order: Order, what: str) -> Created:
    """The offer is gone; by a replay of our own request, if the label is in the list."""
    try:
        found = [row for row in instances(name, wire) if row.label == order.label]
    except ProviderError as error:
        raise CreateUnclear(f"vast: {what}: no such offer, and no list either: {error}") from None
    if not found:
        raise NoCapacity(f"vast offer {order.offer.id} is gone; nothing was made")
    return Created(found[0].id)


def _made(fields: Mapping[str, Any]) -> str:
    number = fields.get("new_contract")
    whole = isinstance(number, int) and not isinstance(number, bool)
    return str(number) if whole or (isinstance(number, str) and number.isdecimal()) else ""


def _said(answer: Answer) -> str:
    """Never the whole answer: a purchase's holds the box's key."""
    return answer.error or ("no word of success" if answer.body is not None else answer.said)
