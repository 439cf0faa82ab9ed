"""Instances as Vast's rows show them.

Facts that shape it: `actual_status` is the container's word, null while it is being provisioned;
`cur_state` the hardware's; `intended_status` what somebody wants.  A container that failed to start
is `created` with hardware `stopped`.  `exited` alone may lag behind a container that answers.
Everything but the id may be null, and the address may have white space around it.  Bytes moved are
counted in a unit that no document names; KiB, by those who held it against the speed of a line.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal
from typing import Any

from gpurun.errors import ProviderError
from gpurun.model import Instance, InstanceState
from provisioners.vast.names import shown
from provisioners.vast.wire import money

_WORDS = {
    None: InstanceState.STARTING,
    "created": InstanceState.STARTING,
    "loading": InstanceState.STARTING,
    "rebooting": InstanceState.STARTING,
    "running": InstanceState.RUNNING,
    "stopped": InstanceState.STOPPED,
}
LINE_SLACK = 2  # a host tells the speed of its own line
_NOISE, _CENT = Decimal("1e-9"), Decimal("1e-6")


def instance(name: str, row: Any, now: datetime | None = None) -> Instance:
    """ProviderError for a row without an id: a list that holds it is not complete.

    What it has moved is told only with `now`.
    """
    if not isinstance(row, dict) or (number := _whole(row.get("id"))) is None:
        raise ProviderError(f"{name}: a row without an id: nothing can be said of the account")
    state = state_of(row)
    gpu_name = row.get("gpu_name")
    return Instance(
        provider=name,
        id=str(number),
        label=str(row.get("label") or ""),
        state=state,
        usd_per_hour=_rate(row, state),
        created_at=_moment(row.get("start_date")),
        gpu=shown(str(gpu_name), _whole(row.get("gpu_ram")) or 0) if gpu_name else None,
        gpu_count=_whole(row.get("num_gpus")) or 0,
        machine=str(row.get("machine_id") or ""),
        message=str(row.get("status_msg") or "").strip()[:300],
        traffic_usd=None if now is None else _traffic(row, now),
    )


def state_of(row: Mapping[str, Any]) -> InstanceState:
    """A word that nobody knows is UNKNOWN, and so are those that bill without being of use."""
    if row.get("cur_state") == "stopped":
        return InstanceState.STOPPED  # outbid, parked, out of credit, or it failed to start
    word = row.get("actual_status")
    return _WORDS.get(word, InstanceState.UNKNOWN) if _plain(word) else InstanceState.UNKNOWN


def addresses(row: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Where SSH answers: directly, then through the proxy; empty while that is not known."""
    found = []
    direct = str(row.get("public_ipaddr") or "").strip()
    ports = row.get("ports")
    bindings = ports.get("22/tcp") if isinstance(ports, dict) else None
    first = bindings[0] if isinstance(bindings, list) and bindings else None
    if direct and isinstance(first, dict) and (port := _port(first.get("HostPort"))):
        found.append((direct, port))
    proxy = str(row.get("ssh_host") or "").strip()
    if proxy and (port := _port(row.get("ssh_port"))):
        found.append((proxy, port))
    return tuple(found)


def micro_usd(rate: Decimal) -> Decimal:
    """Up to the next millionth of a dollar, once what a double added is gone."""
    return rate.quantize(_NOISE).quantize(_CENT, ROUND_CEILING).normalize() + Decimal("0.00")


def _rate(row: Mapping[str, Any], state: InstanceState) -> Decimal | None:
    """All-in while it may use its GPUs, what its disk costs while it is stopped."""
    total = money(row.get("dph_total"))
    if state is InstanceState.STOPPED:
        disk = money(row.get("storage_total_cost"))
        total = total if disk is None else disk
    return None if total is None else micro_usd(total)


def _traffic(row: Mapping[str, Any], now: datetime) -> Decimal | None:
    """What was moved either way, at the prices of this box.

    None where a number is missing, and where the line could not have carried so much: then the
    unit is another, and no timer comes nearer for it.
    """
    made_at, total = _moment(row.get("start_date")), Decimal(0)
    for way in ("up", "down"):
        kib, usd_per_gb = money(row.get(f"inet_{way}_billed")), money(row.get(f"inet_{way}_cost"))
        mbit_s = money(row.get(f"inet_{way}"))
        if kib is None or usd_per_gb is None or mbit_s is None or made_at is None:
            return None
        seconds = Decimal((now - made_at).total_seconds())
        if kib * 1024 > mbit_s * 125_000 * seconds * LINE_SLACK:
            return None
        total += kib * 1024 * usd_per_gb / 10**9
    return total


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    return int(value)


def _port(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.isdecimal() and 0 < int(text) < 65536 else None


def _moment(value: Any) -> datetime | None:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    try:
        return datetime.fromtimestamp(float(value), UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _plain(word: Any) -> bool:
    return word is None or isinstance(word, str)
