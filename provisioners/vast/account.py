"""The account: whose money it is, how much is left, who is let in, and what was charged.

Facts that shape it: prepaid credit is the one hard cap, and a card that tops it up defeats it; the
list of SSH keys is 404 when there are none; keys reach only instances that are made after them;
charges want both bounds of their days, and a day is there once it is over (UTC).
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from gpurun.errors import ProviderError
from gpurun.provider import Remark
from provisioners.vast.wire import V0, V1, Wire, money

BACK = timedelta(days=60)
PAGE, PAGES_MOST = 100, 100
_REGISTER = "`gpurun auth vast --ssh-key ~/.ssh/id_ed25519.pub` lets it in on all others too"
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


def remarks(wire: Wire, ours: Sequence[str], now: datetime) -> list[Remark]:
    """What the key may read, tried, who is let in, and a card that pays unasked.

    Writing cannot be tried without doing it.
    """
    try:
        who = user(wire)
    except ProviderError as error:
        return [Remark("key", str(error), ok=False)]
    found = []
    for what, path in READS:
        try:
            wire.get(what, path)
        except ProviderError as error:
            found.append(Remark(what, str(error), ok=False))
    try:
        _page(wire, now, "")
    except ProviderError as error:
        found.append(Remark("the charges", f"bills stay as reckoned from the rate: {error}"))
    if not found:
        found = [Remark("permissions", "reads all that a run needs; writing cannot be tried")]
    found.append(_ssh_key(wire, ours))
    if refill := _refill(who):
        found.append(Remark("autobilling", refill))
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
    found: list[Decimal] = []
    token = ""
    for _ in range(PAGES_MOST):
        page = _page(wire, now, token)
        rows = page.get("results")
        if not isinstance(rows, list):
            raise ProviderError("vast: no list in the answer to the charges")
        found += [usd for row in rows if (usd := _charge(row, instance_id)) is not None]
        token = str(page.get("next_token") or "")
        if not token:
            return sum(found, Decimal(0)) if found else None
    raise ProviderError("vast: the charges do not end")


def _page(wire: Wire, now: datetime, token: str) -> Mapping[str, Any]:
    """Of the charges; the token of the page before names the next one."""
    days = json.dumps({"day": {"gte": int((now - BACK).timestamp()), "lte": int(now.timestamp())}})
    query = {"select_filters": days, "limit": str(PAGE), "format": "table"}
    more = {"after_token": token} if token else {}
    return wire.get("the charges", f"{V0}/charges/", **query, **more).fields


def _ssh_key(wire: Wire, ours: Sequence[str]) -> Remark:
    """Each box is told the keys of this machine as it is rented, registered or not."""
    try:
        registered = {tuple(key.split()[:2]) for key in ssh_keys(wire)}
    except ProviderError as error:
        return Remark("SSH key", f"whether one is registered is not known: {error}", bool(ours))
    if any(tuple(key.split()[:2]) in registered for key in ours):
        return Remark("SSH key", "one of this machine's is registered")
    if ours:
        says = f"none of this machine's is registered. Boxes of gpurun let them in; {_REGISTER}"
        return Remark("SSH key", says)
    if registered:
        return Remark("SSH key", f"{len(registered)} registered, none of them in ~/.ssh here")
    says = "none is registered, and none in ~/.ssh here: make one with `ssh-keygen -t ed25519`"
    return Remark("SSH key", says, ok=False)


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
