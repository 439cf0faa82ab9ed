"""What the emulated Prime Intellect offers: rows of many upstreams, with the demands of each.

Facts that shape it: prices are for the whole pod and hour; `cloudId` alone does not name an offer;
some upstreams want a data centre, some a maxPrice; a row may be `Unavailable`; the default disk is
in the price although a row says that it is not (runpod); spot is in the `cloudId` alone.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

UBUNTU = "ubuntu_22_cuda_12"
TORCH = ("ubuntu_22_cuda_12", "cuda_12_4_pytorch_2_5", "cuda_12_6_pytorch_2_7", "custom_template")
# Prime's name of a GPU, and the model of tests/boxes that is in the box.
MODELS: Mapping[tuple[str, str], str] = {
    ("H100_80GB", "SXM5"): "H100_SXM",
    ("H100_80GB", "PCIe"): "H100_PCIE",
    ("H200_141GB", "SXM5"): "H200",
    ("A100_80GB", "SXM4"): "A100_80GB",
    ("A100_40GB", "SXM4"): "A100_40GB",
    ("L40S_48GB", "PCIe"): "L40S",
}


@dataclass(frozen=True, slots=True)
class Sku:
    """One row of the availability, and what its upstream demands."""

    cloud_id: str
    provider: str
    gpu_type: str
    socket: str
    gpu_count: int
    gpu_memory: int
    usd_per_hour: Decimal
    data_center: str | None
    country: str | None
    region: str | None
    user: str = "root"
    community_usd_per_hour: Decimal | None = None
    stopped_usd_per_hour: Decimal | None = None  # None: the full price
    is_variable: bool = False
    is_spot: bool | None = False
    needs_data_center: bool = False
    needs_max_price: bool = False
    images: tuple[str, ...] | None = TORCH
    security: str | None = "secure_cloud"
    stock: str = "Available"
    disk_gb: tuple[int, int, int] = (80, 200, 8000)  # least, default, most
    disk_usd_per_gb_hour: Decimal = Decimal("0.00011")
    disk_included: bool = True
    nodes: int = 1

    @property
    def price(self) -> Decimal:
        """Per hour, with the default disk."""
        return self.community_usd_per_hour or self.usd_per_hour

    def price_with(self, disk_gb: int) -> Decimal:
        return self.price + max(0, disk_gb - self.disk_gb[1]) * self.disk_usd_per_gb_hour

    def row(self, factor: Decimal, currency: str) -> dict[str, Any]:
        least, default, most = self.disk_gb
        community = self.community_usd_per_hour
        return {
            "cloudId": self.cloud_id,
            "gpuType": self.gpu_type,
            "socket": self.socket,
            "provider": self.provider,
            "region": self.region,
            "dataCenter": self.data_center,
            "country": self.country,
            "gpuCount": self.gpu_count,
            "gpuMemory": self.gpu_memory,
            "disk": _spec(least, default, most, self.disk_usd_per_gb_hour, 1, self.disk_included),
            "sharedDisk": _spec(None, None, None, None, None, None),
            "vcpu": _spec(26 * self.gpu_count, 26 * self.gpu_count, 26 * self.gpu_count),
            "memory": _spec(225 * self.gpu_count, 225 * self.gpu_count, 225 * self.gpu_count),
            "internetSpeed": 1000.0 if self.provider != "runpod" else None,
            "interconnect": 3200 if self.nodes > 1 else None,
            "interconnectType": "Infiniband" if self.nodes > 1 else None,
            "provisioningTime": 5,
            "stockStatus": self.stock,
            "security": self.security,
            "prices": {
                "onDemand": self.usd_per_hour * factor,
                "communityPrice": None if community is None else community * factor,
                "isVariable": self.is_variable,
                "currency": currency,
            },
            "images": None if self.images is None else list(self.images),
            "isSpot": self.is_spot,
            "prepaidTime": None,
        }


def _spec(
    least: int | None,
    default: int | None,
    most: int | None,
    usd: Decimal | None = None,
    step: int | None = 1,
    included: bool | None = True,
) -> dict[str, Any]:
    return {
        "minCount": least,
        "defaultCount": default,
        "maxCount": most,
        "pricePerUnit": usd,
        "step": step,
        "defaultIncludedInPrice": included,
        "additionalInfo": None,
    }


def _h100(provider: str, cloud_id: str, count: int, price: str, place: str) -> Sku:
    country, _, center = place.partition("/")
    region = {"US": "united_states", "FI": "eu_north", "CA": "canada"}[country]
    total = Decimal(price)
    return Sku(
        *(cloud_id, provider, "H100_80GB", "SXM5", count, 80, total, center, country, region)
    )


def market() -> tuple[Sku, ...]:
    """The fixed market; the cheapest rows are those with a catch."""
    lambdalabs = _h100("lambdalabs", "gpu_4x_h100_sxm5", 4, "12.36", "US/us-south-2")
    datacrunch = _h100("datacrunch", "4H100.80S.128V", 4, "8.76", "FI/FIN-02")
    massed = _h100("massedcompute", "gpu_4x_h100_sxm", 4, "9.40", "US/wilmington-us-1")
    runpod = _h100("runpod", "NVIDIA H100 80GB HBM3", 4, "10.7668", "US/US-KS-2")
    hyperstack = _h100("hyperstack", "n3-H100-SXM5x4", 4, "9.60", "CA/CANADA-1")
    one = _h100("datacrunch", "1H100.80S.30V", 1, "2.19", "FI/FIN-02")
    return (
        replace(lambdalabs, user="ubuntu", stopped_usd_per_hour=Decimal("0")),
        replace(datacrunch, needs_data_center=True),
        replace(massed, user="ubuntu", is_variable=True, needs_max_price=True),
        replace(runpod, disk_gb=(60, 120, 1000), disk_included=False, stopped_usd_per_hour=None),
        replace(
            hyperstack,
            user="ubuntu",
            security="community_cloud",
            community_usd_per_hour=Decimal("9.20"),
        ),
        replace(
            datacrunch,
            cloud_id="4H100.80S.128V_SPOT",
            usd_per_hour=Decimal("3.50"),
            is_spot=True,
            needs_data_center=True,
        ),
        replace(runpod, usd_per_hour=Decimal("7.10"), stock="Unavailable", data_center="US-GA-1"),
        replace(runpod, data_center="EU-RO-1", country=None, region=None, images=(UBUNTU,)),
        replace(one, needs_data_center=True),
        replace(one, provider="lambdalabs", cloud_id="gpu_1x_h100_sxm5", user="ubuntu"),
        replace(
            one,
            socket="PCIe",
            provider="hyperstack",
            cloud_id="n3-H100x1",
            usd_per_hour=Decimal("1.90"),
            user="ubuntu",
        ),
        replace(
            _h100("datacrunch", "4H200.141S.176V", 4, "14.36", "FI/FIN-03"),
            gpu_type="H200_141GB",
            gpu_memory=141,
            needs_data_center=True,
        ),
        replace(
            _h100("crusoecloud", "a100-80gb-sxm-ib.4x", 4, "6.40", "US/us-east1-a"),
            gpu_type="A100_80GB",
            socket="SXM4",
            user="ubuntu",
        ),
        replace(
            _h100("runpod", "NVIDIA L40S", 1, "0.79", "US/US-TX-4"),
            gpu_type="L40S_48GB",
            socket="PCIe",
            gpu_memory=48,
        ),
        replace(lambdalabs, cloud_id="gpu_16x_h100_sxm5", gpu_count=16, nodes=2, user="ubuntu"),
    )


def wide_market(count: int) -> tuple[Sku, ...]:
    """As many rows as asked for, the fixed market among them, for measuring a client."""
    skus = list(market())
    kinds = itertools.cycle([sku for sku in skus if sku.nodes == 1])
    for number in range(max(0, count - len(skus))):
        like = next(kinds)
        price = like.usd_per_hour + Decimal(number % 89) / 50
        skus.append(replace(like, cloud_id=f"{like.cloud_id}.{number}", usd_per_hour=price))
    return tuple(skus[:count])
