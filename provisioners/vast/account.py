"""The account: whose money it is, how much is left, who is let in, and what was charged.

Facts that shape it: prepaid credit is the one hard cap, and a card that tops it up defeats it; the
list of SSH keys is 404 when there are none; keys reach only instances that are made after them;
charges want both bounds of their days, and a day is there once it is over (UTC).
"""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from gpurun.errors import ProviderError
from gpurun.provider import Remark
from provisioners.vast.wire import V0, V1, Wire, money

BACK = timedelta(days=60)
PAGE, PAGES_MOST = 100, 100
READS = (
    ("the list of instances", f"{V1}/instances/"),
    ("the list of scheduled jobs", f"{V0}/commands/schedule_job/"),
)


def user(wire: Wire) -> Mapping[str, Any]:
    fields = wire.get("the account", f"{V0}/users/current/").fields
    if not isinstance(fields.get("id"), int):
        raise ProviderError("vast does not say whose key this is")
    return fields


def credit_usd(wire: Wire) -> Decimal | None:
    return money(user(wire).get("credit"))


def remarks(wire: Wire) -> list[Remark]:
    """What the key may read, tried, and a card that pays unasked; writing cannot be tried."""
    try:
        who = user(wire)
    except ProviderError as error:
        return [Remark("key", str(error), ok=False)]
    found = [Remark("key", f"account {who['id']}")]
    for what, path in READS:
        try:
            wire.get(what, path)
        except ProviderError as error:
            found.append(Remark(what, str(error), ok=False))
    if refill := _refill(who):
        found.append(Remark("credit", refill))
    return found


def ssh_keys(wire: Wire) -> list[str]:
    answer = wire.ask("the SSH keys", "GET", f"{V0}/ssh/")
    if answer.status == 404:
        return []
    rows = wire.accepted("the SSH keys", answer).body
    rows = rows.get("keys", rows.get("ssh_keys")) if isinstance(rows, dict) else rows
    if not isinstance(rows, list):
        raise ProviderError("vast: no list in the answer to the SSH keys")
    keys = (row.get("public_key") or row.get("key") for row in rows if isinstance(row, dict))
    return [str(key).strip() for key in keys if key]


def register_ssh_key(wire: Wire, public_key: str) -> None:
    """The text of the key: the official client once sent the path of its file."""
    what = "a new SSH key"
    answer = wire.ask(what, "POST", f"{V0}/ssh/", body={"ssh_key": public_key.strip()})
    wire.accepted(what, answer)


def billed_usd(wire: Wire, instance_id: str, now: datetime) -> Decimal | None:
    """Of the days that are over; None while none of them lists it."""
    days = json.dumps({"day": {"gte": int((now - BACK).timestamp()), "lte": int(now.timestamp())}})
    found: list[Decimal] = []
    token = ""
    for _ in range(PAGES_MOST):
        query = {"select_filters": days, "limit": str(PAGE), "format": "table"}
        page = wire.get(
            "the charges", f"{V0}/charges/", **query | ({"after_token": token} if token else {})
        ).fields
        rows = page.get("results")
        if not isinstance(rows, list):
            raise ProviderError("vast: no list in the answer to the charges")
        found += [usd for row in rows if (usd := _charge(row, instance_id)) is not None]
        token = str(page.get("next_token") or "")
        if not token:
            return sum(found, Decimal(0)) if found else None
    raise ProviderError("vast: the charges do not end")


def _charge(row: Any, instance_id: str) -> Decimal | None:
    if not isinstance(row, dict):
        return None
    about = row.get("metadata")
    number = about.get("instance_id") if isinstance(about, dict) else None
    ours = str(number) == instance_id or row.get("source") == f"instance-{instance_id}"
    return money(row.get("amount")) if ours else None


def _refill(who: Mapping[str, Any]) -> str:
    below = money(who.get("autobill_threshold"))
    if below is None:
        return ""
    return f"a card tops it up below ${below}: the credit is no cap on what can be spent"
