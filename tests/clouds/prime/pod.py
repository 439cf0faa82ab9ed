"""A pod, and a disk, at the emulated Prime Intellect: what is known, shown and billed.

Facts that shape it: PROVISIONING bills its own price (0), STOPPED its own or the full one, and what
is unstated (PENDING, ERROR, UNKNOWN, DELETING) is taken to bill in full; `sshConnection` has many
shapes; `PodStatus` has lost price and ports.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.clouds.meter import ZERO
from tests.clouds.prime.account import TEAM_WALLET_ID, USER_ID, WALLET_ID, iso
from tests.clouds.prime.skus import Sku
from tests.clouds.world import Rental

DISK_USD_PER_GB_HOUR = Decimal("0.0001")


@dataclass(slots=True, kw_only=True)
class Pod(Rental):
    sku: Sku
    usd_per_hour: Decimal
    disk_size_gb: int
    image: str
    env: dict[str, str]
    team_id: str | None = None
    ssh_key_id: str | None = None
    disks: tuple[str, ...] = ()
    status: str = "PROVISIONING"
    installation: str = "PENDING"
    progress: int | None = None
    failure: str | None = None
    deleted_listed_until: Any = None
    outbid: bool = False
    address: tuple[str, str, int] | None = None  # user, host, port

    @property
    def shown(self) -> str:
        return self.word or self.status

    @property
    def rate(self) -> Decimal:
        return self.usd_per_hour * self.price_factor

    def rates(self) -> dict[str, Decimal]:
        """What it bills in its present state, $ per hour."""
        if self.status == "PROVISIONING":
            return {}
        stopped = self.sku.stopped_usd_per_hour
        if self.shown == "STOPPED" and stopped is not None:
            return {"pod": stopped}
        return {"pod": self.rate}


@dataclass(slots=True, kw_only=True)
class Disk(Rental):
    """A persistent disk: it outlives its pods, and bills on."""

    size_gb: int
    cloud_id: str | None
    provider: str
    data_center: str | None
    country: str | None
    team_id: str | None = None

    @property
    def rate(self) -> Decimal:
        return DISK_USD_PER_GB_HOUR * self.size_gb

    def row(self, pods: list[str]) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.label,
            "createdAt": iso(self.made_at),
            "updatedAt": iso(self.made_at),
            "terminatedAt": iso(self.gone_at),
            "status": self.state,
            "providerType": self.provider,
            "size": self.size_gb,
            "info": {
                "country": self.country,
                "dataCenterId": self.data_center,
                "cloudId": self.cloud_id,
                "isMultinode": False,
            },
            "priceHr": self.rate,
            "stoppedPriceHr": None,
            "provisioningPriceHr": ZERO,
            "userId": USER_ID,
            "teamId": self.team_id,
            "walletId": TEAM_WALLET_ID if self.team_id else WALLET_ID,
            "pods": pods,
            "clusters": [],
        }


def connection(pod: Pod, shape: str | None) -> dict[str, Any]:
    """`sshConnection` and `ip`, as they are or as a knob wants them."""
    if pod.address is None:
        return {"sshConnection": None, "ip": None}
    user, host, port = pod.address
    usual = f"{user}@{host} -p {port}"
    shapes: dict[str | None, tuple[Any, Any]] = {
        "list": ([usual], [host]),
        "list_null": ([None], [None]),
        "nodes": ([usual, None], [host, None]),
        "null": (None, host),
        "placeholder": (f"{user}@ -p {port}", None),
        "no_port": (f"{user}@{host}", host),
        "with_ssh": (f"ssh {usual}", host),
    }
    text, ip = shapes.get(shape, (usual, host))
    return {"sshConnection": text, "ip": ip}


def pod_row(pod: Pod, shape: str | None, disks: list[Disk]) -> dict[str, Any]:
    """The pod as the API shows it."""
    ports = pod.address and [
        {
            "internal": str(pod.address[2]),
            "external": str(pod.address[2]),
            "protocol": "TCP",
            "usedBy": "SSH",
            "description": "SSH",
        }
    ]
    return {
        "id": pod.id,
        "userId": USER_ID,
        "teamId": pod.team_id,
        "walletId": TEAM_WALLET_ID if pod.team_id else WALLET_ID,
        "name": pod.label or None,
        "type": "HOSTED",
        "providerType": pod.sku.provider,
        "status": pod.shown,
        "installationStatus": pod.installation,
        "installationFailure": pod.failure,
        "installationProgress": pod.progress,
        "createdAt": iso(pod.made_at),
        "updatedAt": iso(pod.made_at),
        "terminatedAt": iso(pod.gone_at),
        "gpuName": pod.sku.gpu_type,
        "gpuCount": pod.sku.gpu_count,
        "socket": pod.sku.socket,
        "priceHr": pod.rate,
        "stoppedPriceHr": pod.sku.stopped_usd_per_hour,
        "provisioningPriceHr": ZERO,
        "basePriceHr": pod.rate,
        "baseCurrency": "USD",
        "environmentType": pod.image,
        "customTemplateId": None,
        "clusterId": None,
        "primePortMapping": ports or [],
        **connection(pod, shape),
        "resources": {
            "memory": 225 * pod.sku.gpu_count,
            "disk": pod.disk_size_gb,
            "shared_disk": None,
            "vcpus": 26 * pod.sku.gpu_count,
        },
        "attachedResources": [
            {
                "resourceType": "DISK",
                "id": disk.id,
                "type": "DISK",
                "status": "ATTACHED",
                "isDetachable": True,
                "mountPath": "/workspace",
                "resourcePath": None,
                "size": disk.size_gb,
                "isShared": False,
            }
            for disk in disks
        ],
        "isSpot": pod.sku.is_spot,
        "autoRestart": False,
        "jupyterPassword": None,
    }


def status_row(row: dict[str, Any]) -> dict[str, Any]:
    """A `PodStatus`: no price, no ports any more."""
    names = (
        *("providerType", "status", "sshConnection", "ip"),
        *("installationStatus", "installationFailure", "installationProgress"),
    )
    return {"podId": row["id"], **{name: row[name] for name in names}}
