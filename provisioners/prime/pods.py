"""Pods as instances, and where they answer to SSH.

Facts that shape it: states that nobody documents bill in full; STOPPED has a price of its own, or
the full one; ACTIVE is not ready while the image installs itself; `sshConnection` is text, a list,
null, or has no host in it, and some pods never get one: then address and port map tell.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from gpurun.errors import ProviderError
from gpurun.model import Instance, InstanceState
from provisioners.prime.gpus import name_of
from provisioners.prime.money import amount

Row = Mapping[str, Any]
TERMINATED, DELETING = "TERMINATED", "DELETING"
_STATES = {
    "PROVISIONING": InstanceState.STARTING,
    "PENDING": InstanceState.STARTING,
    "ACTIVE": InstanceState.RUNNING,
    "STOPPED": InstanceState.STOPPED,
    "ERROR": InstanceState.STOPPED,  # it will never run; it may bill all the same
    DELETING: InstanceState.ENDING,
    TERMINATED: InstanceState.GONE,
}
_INSTALLING = {
    "PENDING": InstanceState.STARTING,
    "ACTIVE": InstanceState.STARTING,
    "ERROR": InstanceState.STOPPED,
    "TERMINATED": InstanceState.STOPPED,
}
_CONNECTION = re.compile(
    r"\s*(?:ssh\s+)?(?P<user>[A-Za-z_][\w.-]*)@(?P<host>[^\s@]*)(?:\s+-p\s*(?P<port>\d{1,5}))?\s*"
)


def instance(row: Row) -> Instance:
    """ProviderError if the row does not even say which pod it is."""
    pod_id, count = row.get("id"), row.get("gpuCount")
    if not isinstance(pod_id, str) or not pod_id:
        raise ProviderError("prime lists a pod without an id: its list cannot be relied on")
    gpu_type = row.get("gpuName")
    known = isinstance(gpu_type, str) and gpu_type != "CPU_NODE"
    return Instance(
        provider="prime",
        id=pod_id,
        label=str(row.get("name") or ""),
        state=_state(row),
        usd_per_hour=_rate(row),
        created_at=_instant(row.get("createdAt")),
        gpu=name_of(str(gpu_type), row.get("socket")) if known else None,
        gpu_count=count if isinstance(count, int) else 0,
    )


def disk(row: Row, disk_id: str) -> Instance:
    """A disk that bills by itself, as something the account holds."""
    return Instance(
        provider="prime",
        id=disk_id,
        label=str(row.get("name") or ""),
        state=InstanceState.STOPPED,
        usd_per_hour=amount(row.get("priceHr")),
        created_at=_instant(row.get("createdAt")),
    )


def address(row: Row) -> tuple[str, str, int] | None:
    """User, host and port; None while they are not told."""
    said = row.get("sshConnection")
    first = _first_text(said)
    found = _CONNECTION.fullmatch(first) if first else None
    mapped = _ssh_port(row)
    if found and found["host"]:
        return found["user"], found["host"].strip("[]"), int(found["port"] or mapped or 22)
    ip = _first_text(row.get("ip"))
    if row.get("status") != "ACTIVE" or not ip or mapped is None:
        return None
    return found["user"] if found else "root", ip.strip(), mapped


def _state(row: Row) -> InstanceState:
    state = _STATES.get(str(row.get("status")), InstanceState.UNKNOWN)
    if state is InstanceState.RUNNING:
        return _INSTALLING.get(str(row.get("installationStatus")), state)
    return state


def _rate(row: Row) -> Decimal | None:
    """What it bills now; the full price while it is provisioned, which is never too low."""
    full, stopped = amount(row.get("priceHr")), amount(row.get("stoppedPriceHr"))
    return stopped if row.get("status") == "STOPPED" and stopped is not None else full


def _ssh_port(row: Row) -> int | None:
    mapping = row.get("primePortMapping")
    for port in mapping if isinstance(mapping, list) else []:
        if isinstance(port, Mapping) and port.get("usedBy") == "SSH":
            external = str(port.get("external"))
            return int(external) if re.fullmatch(r"\d{1,5}", external) else None
    return None


def _first_text(value: object) -> str:
    """Of a list, the first node's: the others are null while they come up."""
    items = value if isinstance(value, list) else [value]
    return next((item for item in items if isinstance(item, str)), "")


def _instant(text: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
