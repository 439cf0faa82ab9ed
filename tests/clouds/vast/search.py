"""A search of the market: filters, order, the cap of 64, and the rows it returns.

Facts that shape it: numbers typed into the official client arrive as text; names
match exactly; a filter on `id` matches nothing; `dph_total` holds the storage that was asked for.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from tests.clouds.vast.machines import Machine

MOST = 64
DEFAULT_STORAGE_GB = Decimal(8)
DIRECTIVES = {
    "order",
    "type",
    "limit",
    "allocated_storage",
    "disable_bundling",
    "target_reliability",
    "extra_ids",
    "has_avx",
    "gpu_option",
    "show_incompatible",
    "sort_option",
    "template_id",
}
# What the official client's filters are called in a row.
COLUMNS = {"verified": "verification", "datacenter": "hosting_type", "reliability2": "reliability"}


@dataclass(frozen=True, slots=True)
class Ask:
    """One offer: it can make one instance."""

    id: int
    machine: Machine


class BadQuery(Exception):
    """A filter that the API refuses."""


def offer_row(
    ask: Ask, storage_gb: Decimal, kind: str, now: datetime, factor: Decimal
) -> dict[str, Any]:
    """An offer as the API shows it, for this storage; `kind` is on-demand, bid or reserved."""
    machine, chip = ask.machine, ask.machine.chip
    gpus = machine.num_gpus
    min_bid = machine.min_bid * factor
    base = min_bid if kind == "bid" else machine.usd_per_hour * factor
    storage = machine.storage_usd_per_hour(storage_gb)
    total = base + storage
    return {
        "id": ask.id,
        "ask_contract_id": ask.id,
        "bundle_id": ask.id + 5_000_000,
        "machine_id": machine.machine_id,
        "host_id": machine.host_id,
        "num_gpus": gpus,
        "gpu_name": chip.name,
        "gpu_ram": chip.memory_mb,
        "gpu_total_ram": chip.memory_mb * gpus,
        "gpu_frac": machine.gpu_frac,
        "gpu_arch": "nvidia",
        "gpu_lanes": 16,
        "gpu_mem_bw": chip.bandwidth_gbs,
        "gpu_max_power": 700.0,
        "gpu_max_temp": 89.0,
        "gpu_display_active": False,
        "compute_cap": chip.compute_cap,
        "cuda_max_good": machine.cuda_max_good,
        "driver_version": machine.driver_version,
        "driver_vers": driver_number(machine.driver_version),
        "bw_nvlink": 478.1 if machine.nvlink and gpus > 1 else 0.0,
        "cpu_name": "AMD EPYC 9554 64-Core Processor",
        "cpu_arch": "amd64",
        "cpu_cores": 256,
        "cpu_cores_effective": 256.0 * gpus / 8,
        "cpu_ghz": 3.1,
        "cpu_ram": 2_063_912,
        "has_avx": 1,
        "disk_space": machine.disk_space,
        "disk_bw": 6203.5,
        "disk_name": "nvme",
        "inet_up": machine.inet_up,
        "inet_down": machine.inet_down,
        "inet_up_cost": machine.inet_up_cost,
        "inet_down_cost": machine.inet_down_cost,
        "internet_up_cost_per_tb": machine.inet_up_cost * 1000,
        "internet_down_cost_per_tb": machine.inet_down_cost * 1000,
        "direct_port_count": machine.direct_port_count,
        "pci_gen": 5.0,
        "pcie_bw": 53.8,
        "mobo_name": "SYS-821GE-TNHR",
        "os_version": "22.04",
        "dph_base": base,
        "dph_total": total,
        "storage_cost": machine.storage_cost,
        "storage_total_cost": storage,
        "discounted_dph_total": total,
        "min_bid": min_bid,
        "dlperf": chip.dlperf * gpus,
        "dlperf_per_dphtotal": float(chip.dlperf * gpus) / float(total),
        "total_flops": chip.tflops * gpus,
        "flops_per_dphtotal": float(chip.tflops * gpus) / float(total),
        "score": 3.0 * chip.dlperf * gpus / float(total) * machine.reliability,
        "credit_discount_max": 0.4,
        "platform_fee": 0.25,
        "rentable": True,
        "rented": False,
        "is_bid": kind == "bid",
        "external": machine.external,
        "hosting_type": machine.hosting_type,
        "public_ipaddr": f"192.0.2.{machine.machine_id % 250}",
        "geolocation": machine.geolocation,
        "geolocode": 18507,
        "reliability": machine.reliability,
        "reliability2": machine.reliability,
        "expected_reliability": machine.reliability,
        "verification": machine.verification,
        "vericode": 1,
        "static_ip": True,
        "vms_enabled": False,
        "resource_type": "gpu",
        "start_date": now.timestamp() - 86400.0,
        "end_date": now.timestamp() + machine.duration_s,
        "duration": float(machine.duration_s),
    }


def driver_number(version: str) -> int:
    """535.86.05 as 535086005."""
    major, minor, patch = version.split(".")
    return int(f"{major}{minor:0>3}{patch:0>3}")


def search(
    rows: Iterable[dict[str, Any]], query: Mapping[str, Any], numbers_ignored: bool = False
) -> list[dict[str, Any]]:
    """The rows that match, in the order asked for, at most 64."""
    filters = {
        name: condition
        for name, condition in query.items()
        if name not in DIRECTIVES and isinstance(condition, Mapping)
    }
    found = [
        row
        for row in rows
        if all(_matches(row, name, each, numbers_ignored) for name, each in filters.items())
    ]
    for column, direction in reversed(query.get("order") or [["score", "desc"]]):
        present = [row for row in found if row.get(column) is not None]
        present.sort(key=lambda row: row[column], reverse=direction == "desc")
        found = present + [row for row in found if row.get(column) is None]
    limit = query.get("limit")
    return found[: min(MOST, int(limit)) if limit else MOST]


def matches(value: Any, condition: Mapping[str, Any]) -> bool:
    """Whether a column's value meets every comparison of a condition."""
    return all(_compare(value, word, wanted) for word, wanted in condition.items())


def _matches(
    row: Mapping[str, Any], name: str, condition: Mapping[str, Any], numbers_ignored: bool
) -> bool:
    if name == "id":
        return False
    if name == "verified":
        wanted = {"verified"} if condition.get("eq") else {"unverified", "deverified"}
        return row["verification"] in wanted
    value = row.get(COLUMNS.get(name, name))
    if name == "driver_version":
        value = row["driver_vers"]
    if name == "geolocation":
        value = value and value.rpartition(", ")[2]
    if name == "datacenter":
        value = value == 1
    if numbers_ignored and isinstance(value, int | float | Decimal):
        return True
    return matches(value, condition)


def _compare(value: Any, word: str, wanted: Any) -> bool:
    if word in ("in", "notin", "nin"):
        among = any(_same(value, each) for each in wanted or [])
        return among == (word == "in")
    if word in ("eq", "neq"):
        return _same(value, wanted) == (word == "eq")
    if word not in ORDERS:
        raise BadQuery(f"unknown operator {word}")
    try:
        return ORDERS[word](Decimal(str(value)), Decimal(str(wanted)))
    except InvalidOperation:
        return False


def _same(value: Any, wanted: Any) -> bool:
    """Equal, a number typed as text included."""
    if isinstance(value, bool) or isinstance(wanted, bool):
        return bool(value) == (wanted if isinstance(wanted, bool) else str(wanted) == "True")
    if isinstance(value, int | float | Decimal):
        try:
            return Decimal(str(value)) == Decimal(str(wanted))
        except InvalidOperation:
            return False
    return bool(value == wanted)


ORDERS: Mapping[str, Callable[[Decimal, Decimal], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}
