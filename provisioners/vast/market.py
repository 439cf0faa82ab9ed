"""The search for offers, and which of them a careful buyer takes.

Facts that shape it: at most 64 offers come back, so pages go by price; numeric filters are not
always applied, so everything is checked again here; `cuda_max_good` as a filter hid H100s, so it is
checked here alone; `dph_total` may leave out the storage that was asked for; traffic is billed
beside it; an offer is a bid only if it was searched for as one.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gpurun.errors import NoOffer, ProviderError
from gpurun.model import Need, Offer
from provisioners.vast.names import CATALOGUE, Wish, near, shown
from provisioners.vast.rows import micro_usd
from provisioners.vast.wire import V0, Wire, money

DEFAULT_IMAGE = "pytorch/pytorch:2.5.1-cuda12.4-cudnn9-devel"
PAGE, PAGES, ENOUGH = 64, 3, 20
LEAST_DISK_GB = 8
LEAST_RELIABILITY = 0.95
LEAST_MBIT_S = 200
MOST_USD_PER_GB = Decimal("0.02")
MONTH_H = 720
MARGIN_S = 3600.0  # a host's offer must outlast the run by this
UNSAID_S = 86400.0  # where nobody says how long the run is
_CUDA = re.compile(r"(?:cuda|cu)-?(\d{2}\.\d)")


@dataclass(frozen=True, slots=True)
class Search:
    """One need as Vast understands it; `names` is None for a machine with any GPU."""

    need: Need
    wish: Wish | None
    names: list[str] | None
    avoided: Collection[str]

    @property
    def disk_gb(self) -> int:
        return disk_gb(self.need)

    @property
    def rent_s(self) -> float:
        return (self.need.rent_s or UNSAID_S) + MARGIN_S

    def query(self, from_usd: Decimal | None) -> dict[str, Any]:
        need = self.need
        query: dict[str, Any] = {
            "verified": {"eq": True},
            "external": {"eq": False},
            "rentable": {"eq": True},
            "reliability": {"gte": LEAST_RELIABILITY},
            "direct_port_count": {"gte": 1},
            "disk_space": {"gte": self.disk_gb},
            "inet_down": {"gte": LEAST_MBIT_S},
            "duration": {"gte": self.rent_s},
            "order": [["dph_total", "asc"]],
            "type": "bid" if need.spot else "on-demand",
            "allocated_storage": self.disk_gb,
            "limit": PAGE,
        }
        if self.names is not None:
            query["gpu_name"] = {"in": self.names}
        if need.gpu_count:
            query["num_gpus"] = {"eq": need.gpu_count}
        if self.avoided:
            query["machine_id"] = {"notin": [int(m) for m in self.avoided if m.isdecimal()]}
        if from_usd is not None:
            query["dph_total"] = {"gte": from_usd}
        return query

    def takes(self, row: Mapping[str, Any]) -> bool:
        """Everything the query asked for, once more, and what it could not ask for."""
        need, ram_mb = self.need, int(_number(row, "gpu_ram"))
        link = self.wish is not None and self.wish.wants_nvlink and need.gpu_count > 1
        return (
            (self.names is None or row.get("gpu_name") in self.names)
            and (self.wish is None or self.wish.fits(ram_mb))
            and (not need.gpu_count or _number(row, "num_gpus") == need.gpu_count)
            and row.get("verification") == "verified"
            and row.get("rentable") is not False
            and str(row.get("machine_id")) not in self.avoided
            and _number(row, "reliability") >= LEAST_RELIABILITY
            and _number(row, "direct_port_count") >= 1
            and _number(row, "disk_space") >= self.disk_gb
            and _number(row, "inet_down") >= LEAST_MBIT_S
            and _number(row, "duration") >= self.rent_s
            and _usd(row, "inet_down_cost") <= MOST_USD_PER_GB
            and _usd(row, "inet_up_cost") <= MOST_USD_PER_GB
            and _number(row, "cuda_max_good") >= cuda_of(image(need))
            and (not link or _number(row, "bw_nvlink") > 0)
        )


def disk_gb(need: Need) -> int:
    """What is paid for: fixed for the life of the box, and never less than Vast sells."""
    return max(LEAST_DISK_GB, need.disk_gb)


def image(need: Need) -> str:
    return need.image or DEFAULT_IMAGE


def cuda_of(image_name: str) -> float:
    """The CUDA version in an image's name; 0 where it says none."""
    found = _CUDA.search(image_name)
    return float(found[1]) if found else 0.0


def offers(name: str, wire: Wire, need: Need, avoided: Collection[str]) -> list[Offer]:
    """The cheapest first.  NoOffer: there is no GPU of that name; it tells what is near."""
    search = _search(wire, need, avoided)
    found: dict[str, Offer] = {}
    from_usd: Decimal | None = None
    for _ in range(PAGES):
        rows = _rows(wire, search, from_usd)
        for row in rows:
            if search.takes(row) and (offer := _offer(name, search, row)):
                found[offer.id] = offer
        prices = [price for row in rows if (price := money(row.get("dph_total"))) is not None]
        if len(rows) < PAGE or len(found) >= ENOUGH or not prices or max(prices) == from_usd:
            break
        from_usd = max(prices)
    return sorted(found.values(), key=lambda offer: (offer.usd_per_hour, offer.id))


def _search(wire: Wire, need: Need, avoided: Collection[str]) -> Search:
    if need.gpu is None:
        return Search(need, None, None, avoided)
    wish = Wish.of(need.gpu)
    if names := wish.names(CATALOGUE):
        return Search(need, wish, names, avoided)
    known = _live_names(wire)
    if names := wish.names(known):
        return Search(need, wish, names, avoided)
    close = near(need.gpu, [*known, *CATALOGUE])
    hint = f"did you mean {' or '.join(close)}?" if close else "see `gpurun offers`."
    raise NoOffer(f"vast has no GPU called {need.gpu!r}: {hint}")


def _live_names(wire: Wire) -> list[str]:
    body = wire.get("the list of GPU names", f"{V0}/gpu_names/unique/").fields
    found = body.get("gpu_names")
    return [str(each) for each in found] if isinstance(found, list) else []


def _rows(wire: Wire, search: Search, from_usd: Decimal | None) -> list[Mapping[str, Any]]:
    what = "a search for offers"
    answer = wire.ask(what, "POST", f"{V0}/bundles/", body=search.query(from_usd))
    rows = wire.accepted(what, answer).fields.get("offers")
    if not isinstance(rows, list):
        raise ProviderError(f"vast: no list in the answer to {what}: {answer.said}")
    return [row for row in rows if isinstance(row, dict)]


def _offer(name: str, search: Search, row: Mapping[str, Any]) -> Offer | None:
    """None for a row that cannot be priced, or is not what was searched for."""
    spot, number = search.need.spot, row.get("ask_contract_id") or row.get("id")
    gpu_usd, total = money(row.get("dph_base")), money(row.get("dph_total"))
    bid = money(row.get("min_bid")) if spot else None
    if not isinstance(number, int) or total is None or (spot and bid is None):
        return None
    disk = _usd(row, "storage_cost") * search.disk_gb / MONTH_H
    # What is never less than the bill: some offers leave the storage out of their total.
    rate = max(micro_usd(total), micro_usd((bid if bid is not None else gpu_usd or total) + disk))
    ram_mb = int(_number(row, "gpu_ram"))
    cpus, all_cpus = _number(row, "cpu_cores_effective"), _number(row, "cpu_cores")
    share = cpus / all_cpus if all_cpus else 1.0
    return Offer(
        provider=name,
        id=str(number),
        gpu=shown(str(row.get("gpu_name")), ram_mb),
        gpu_count=int(_number(row, "num_gpus")),
        usd_per_hour=rate,
        disk_gb=search.disk_gb,
        place=str(row.get("geolocation") or ""),
        cpu_count=int(cpus),
        memory_gb=int(_number(row, "cpu_ram") * min(1.0, share) / 1000),
        vram_gb=round(ram_mb / 1024),
        spot=spot,
        bid_usd_per_hour=bid,
        machine=str(row.get("machine_id") or ""),
        nvlink=_number(row, "bw_nvlink") > 0,
        reliability=_number(row, "reliability"),
        driver=str(row.get("driver_version") or ""),
        cuda=str(row.get("cuda_max_good") or ""),
        up_mbps=_number(row, "inet_up"),
        down_mbps=_number(row, "inet_down"),
        usd_per_gb_up=_usd(row, "inet_up_cost"),
        usd_per_gb_down=_usd(row, "inet_down_cost"),
        rentable_s=_number(row, "duration"),
    )


def _number(row: Mapping[str, Any], column: str) -> float:
    """0 where the row does not say: no filter here is met by that."""
    value = row.get(column)
    return float(value) if isinstance(value, int | float | Decimal) else 0.0


def _usd(row: Mapping[str, Any], column: str) -> Decimal:
    return money(row.get(column)) or Decimal(0)
