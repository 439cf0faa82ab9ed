"""Whose account it is at Prime Intellect, what its key may do, and what it can still spend.

Facts that shape it: a wallet belongs to a user or to a team; a team's id travels with an order, and
lists may lack a team's pods; a key has scopes by area, and may be limited.
"""

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from gpurun.errors import ProviderError
from gpurun.provider import Remark
from provisioners.prime.access import CLIENT_FILE, Access
from provisioners.prime.api import Api

# What a run needs, whether it must write, and how the dashboard calls it.
NEEDED = (
    ("availability", False, "Availability"),
    ("instances", True, "Instances"),
)
USEFUL = (
    ("ssh_keys", "SSH keys", "it cannot be told whether a pod will let this machine in"),
    ("billing", "Billing", "credit is not known"),
    ("disks", "Disks", "disks that bill on are not seen"),
)


def name(api: Api, access: Access) -> str:
    user_id = whoami(api, access).get("id")
    if not isinstance(user_id, str) or not user_id:
        raise ProviderError("prime does not say whose key this is")
    return f"{user_id}/{access.team_id}" if access.team_id else user_id


def credit_usd(api: Api, access: Access) -> Decimal | None:
    answer = api.ask("GET", "/billing/wallet", {"limit": 1, **team(access)})
    if answer.status == 403:
        return None
    wallet = api.require(answer, "read the wallet")
    balance = wallet.get("balance_usd")
    return Decimal(balance) if isinstance(balance, int | Decimal) else None


def remarks(api: Api, access: Access) -> list[Remark]:
    found = [
        Remark("key", f"from {access.source}"),
        _scopes(whoami(api, access).get("scope")),
    ]
    if access.team_id:
        found.append(
            Remark("team", f"{access.team_id} pays; lists may lack its pods, `gpurun status` not")
        )
    return found + _exposed(access)


def _scopes(scope: object) -> Remark:
    if not isinstance(scope, Mapping):
        return Remark("permissions", "not told")
    missing = [
        f"{title} ({'read and write' if write else 'read'})"
        for area, write, title in NEEDED
        if not may(scope, area, write)
    ]
    if missing:
        says = f"the key lacks {', '.join(missing)}: set it in the dashboard (Settings, API Keys)"
        return Remark("permissions", says, False)
    lacks = [f"no {title}: {why}" for area, title, why in USEFUL if not may(scope, area, False)]
    return Remark("permissions", "; ".join(lacks) or "all that a run needs")


def may(scope: Mapping[str, Any], area: str, write: bool) -> bool:
    allowed = scope.get(area)
    return isinstance(allowed, Mapping) and bool(allowed.get("write" if write else "read"))


def _exposed(access: Access) -> list[Remark]:
    path = Path.home() / CLIENT_FILE
    if not access.source.endswith(str(CLIENT_FILE)) or not path.exists():
        return []
    mode = path.stat().st_mode & 0o777
    if not mode & 0o077:
        return []
    return [Remark("key file", f"others can read {path} (mode {mode:o}): run `chmod 600 {path}`")]


def whoami(api: Api, access: Access) -> Mapping[str, Any]:
    answer = api.get("/user/whoami", team(access), to="say whose key this is")
    user = answer.get("data")
    return user if isinstance(user, Mapping) else {}


def team(access: Access) -> dict[str, str]:
    return {"teamId": access.team_id} if access.team_id else {}
