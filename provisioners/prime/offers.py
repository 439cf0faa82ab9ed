"""Rows of the availability as offers.

Facts that shape it: a price is for the whole pod and hour, and it may or may not hold the disk: the
higher of what it can be is offered, and the true price is in the answer to `create`; `cloudId`
alone does not name an offer, so an id is made of all that does; rows that cannot be had are listed
too; spot is told by a flag that an order does not have.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

from gpurun.errors import NoOffer
from gpurun.model import Need, Offer
from provisioners.prime.gpus import known_names, name_of, near
from provisioners.prime.money import amount

Row = Mapping[str, Any]
Fits = Callable[[str, str, int], bool]  # a wish, a GPU's name, its memory in MiB
UBUNTU = "ubuntu_22_cuda_12"
# What an order repeats, and what a row calls it.
ECHOED = {
    "cloudId": "cloudId",
    "gpuType": "gpuType",
    "socket": "socket",
    "gpuCount": "gpuCount",
    "dataCenterId": "dataCenter",
    "country": "country",
    "security": "security",
}
MIB_OF_GB = 1024  # "80GB" of a GPU are GiB


def choose(rows: Iterable[Row], need: Need, fits: Fits) -> list[Offer]:
    """What serves the need, the cheapest first; NoOffer says why rows that fit cannot be had."""
    found, refused, names = list[Offer](), Counter[str](), set[str]()
    matched = 0
    for row in rows:
        name = name_of(str(row.get("gpuType")), row.get("socket"))
        names.add(name)
        if not _fits(row, name, need, fits):
            continue
        matched += 1
        offer = _offer(row, name, need)
        if isinstance(offer, Offer):
            found.append(offer)
        else:
            refused[offer] += 1
    if not found and matched:
        why = "; ".join(f"{count} {reason}" for reason, count in refused.most_common())
        raise NoOffer(f"prime has {matched} offers for {need.gpu or 'any machine'}, but {why}")
    if not found and need.gpu is not None:
        _refuse_unknown(need.gpu, names | known_names(), fits)
    return sorted(found, key=lambda offer: (offer.usd_per_hour, offer.id))


def _refuse_unknown(wish: str, names: set[str], fits: Fits) -> None:
    if any(fits(wish, name, 0) for name in names):
        return
    close = near(wish, names)
    cure = f": did you mean {', '.join(close)}?" if close else ". Write H100, A100 80GB, RTX 4090"
    raise NoOffer(f"prime knows no GPU {wish!r}{cure}")


def _fits(row: Row, name: str, need: Need, fits: Fits) -> bool:
    if need.gpu is None:
        return True
    mib = int(amount(row.get("gpuMemory")) or 0) * MIB_OF_GB
    return row.get("gpuCount") == need.gpu_count and fits(need.gpu, name, mib)


def _offer(row: Row, name: str, need: Need) -> Offer | str:
    """The offer, or why there is none in this row."""
    if row.get("stockStatus") == "Unavailable":
        return "sold out"
    spot = bool(row.get("isSpot"))
    if spot != need.spot:
        return "can be outbid (--spot)" if spot else "cannot be outbid"
    prices = _mapping(row.get("prices"))
    if prices.get("currency") != "USD":
        return f"priced in {prices.get('currency')}"
    base = amount(prices.get("communityPrice"))
    base = amount(prices.get("onDemand")) if base is None else base
    if base is None or base <= 0:
        return "without a price"
    if amount(row.get("prepaidTime")):
        return "charged for hours beforehand"
    image = _image(row.get("images"), need.image)
    if image is None:
        return "without an image that can be set up"
    disk = _disk(_mapping(row.get("disk")), need.disk_gb)
    if disk is None:
        return f"with less than {need.disk_gb} GB of disk"
    disk_gb, disk_usd = disk
    pod = {word: row.get(column) for word, column in ECHOED.items()}
    pod |= {"image": image, "diskSize": disk_gb}
    echo = json.dumps({"pod": pod, "provider": {"type": row.get("provider")}, "spot": spot})
    speed = amount(row.get("internetSpeed"))
    gpu_count = row.get("gpuCount")
    return Offer(
        provider="prime",
        id=_id(row),
        gpu=name if row.get("gpuType") != "CPU_NODE" else None,
        gpu_count=gpu_count if isinstance(gpu_count, int) else 0,
        usd_per_hour=base + disk_usd,
        disk_gb=disk_gb or need.disk_gb,
        place=" ".join(
            str(row[part]) for part in ("provider", "country", "dataCenter") if row.get(part)
        ),
        cpu_count=_count(row.get("vcpu")),
        memory_gb=_count(row.get("memory")),
        vram_gb=int(amount(row.get("gpuMemory")) or 0),
        spot=spot,
        nvlink=True if str(row.get("socket")).startswith("SXM") else None,
        up_mbps=None if speed is None else float(speed),
        down_mbps=None if speed is None else float(speed),
        echo=echo,
    )


def _id(row: Row) -> str:
    """Short, and the same each time that this very thing is offered."""
    parts = [row.get(column) for column in (*ECHOED.values(), "provider", "isSpot")]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return f"{row.get('provider') or 'prime'}-{digest[:8]}"


def _image(offered: object, wish: str) -> str | None:
    """A word of Prime's own if the need names one, else the plain one: setup brings the rest."""
    if not isinstance(offered, list):
        return UBUNTU
    if wish in offered:
        return wish
    if UBUNTU in offered:
        return UBUNTU
    return max((str(word) for word in offered if str(word).startswith("cuda_12")), default=None)


def _disk(spec: Row, wanted_gb: int) -> tuple[int | None, Decimal] | None:
    """The GB to ask for and what they may cost beside the price; None where they are not to be had.

    A size that cannot be chosen is not asked for: the box itself is measured.
    """
    least, default, most = (spec.get(name) for name in ("minCount", "defaultCount", "maxCount"))
    if not isinstance(default, int):
        return None, Decimal(0)
    if wanted_gb <= default:
        disk_gb, included = default, spec.get("defaultIncludedInPrice") is not False
    else:
        step = spec.get("step") if isinstance(spec.get("step"), int) else 1
        least_gb = least if isinstance(least, int) else 0
        steps = math.ceil((wanted_gb - least_gb) / max(1, int(step or 1)))
        disk_gb, included = least_gb + steps * max(1, int(step or 1)), False
    if isinstance(most, int) and disk_gb > most:
        return None
    rate = amount(spec.get("pricePerUnit")) or Decimal(0)
    return disk_gb, Decimal(0) if included else disk_gb * rate


def _count(spec: object) -> int:
    return int(amount(_mapping(spec).get("defaultCount")) or 0)


def _mapping(value: object) -> Row:
    return value if isinstance(value, Mapping) else {}
