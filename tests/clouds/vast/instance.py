"""One instance at the emulated Vast: what is known of it, its row, and what it bills.

Facts that shape it: `actual_status` is the container's, `cur_state` the
hardware's, `intended_status` what somebody wants; GPU time is billed while it runs or is frozen,
storage from creation to destroy in every state but offline, dearer when stopped.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from tests.clouds.vast.machines import Machine
from tests.clouds.world import Rental

BILLS_GPU = {"running", "frozen", "rebooting", "unknown"}
BILLS_NOTHING = {"offline"}
SSH_PORT = 22
CLOSED_PORT = 9  # nothing listens there


@dataclass(slots=True, kw_only=True)
class Instance(Rental):
    ask_id: int
    machine_offered: Machine
    disk_gb: Decimal
    gpu_usd_per_hour: Decimal
    image: str
    env: dict[str, str]
    onstart: str
    runtype: str
    api_key: str
    is_bid: bool = False
    status: str | None = None  # the container's own, whatever `word` says
    intended: str = "running"
    allocated: str = "running"  # cur_state and next_state
    message: str | None = None
    attached: dict[int, str] = field(default_factory=dict)  # SSH keys of this instance alone
    addresses: dict[str, Any] = field(default_factory=dict)
    ran_since: datetime | None = None
    disk_factor: Decimal = Decimal(1)
    sent_bytes: int = 0
    received_bytes: int = 0
    outbid: bool = False
    expired: bool = False  # its host's offer has ended: it cannot start again

    @property
    def shown(self) -> str | None:
        return self.word or self.status

    @property
    def ends_at(self) -> datetime:
        """When its host's offer ends, fixed when it was rented."""
        return self.made_at + timedelta(seconds=self.machine_offered.duration_s)

    @property
    def stopped(self) -> bool:
        return self.allocated == "stopped"

    @property
    def direct(self) -> bool:
        """Whether it was asked for, and the machine has, a port of its own for SSH."""
        asked = "ssh_direc" in self.runtype or "jupyter_direc" in self.runtype
        return asked and self.machine_offered.direct_port_count >= 1

    @property
    def gpu_rate(self) -> Decimal:
        return self.gpu_usd_per_hour * self.price_factor

    @property
    def storage_rate(self) -> Decimal:
        rate = self.machine_offered.storage_usd_per_hour(self.disk_gb, stopped=self.stopped)
        return rate * self.disk_factor

    def rates(self) -> dict[str, Decimal]:
        """What it bills in its present state, $ per hour by item."""
        if self.shown in BILLS_NOTHING:
            return {}
        disk = {"disk": self.storage_rate}
        known = {None, "created", "loading", "stopped", "exited"}
        gpu = self.shown in BILLS_GPU or self.shown not in known
        return disk | {"gpu": self.gpu_rate} if gpu else disk


def row(instance: Instance, now: datetime) -> dict[str, Any]:
    """The instance as the API shows it."""
    machine, chip = instance.machine_offered, instance.machine_offered.chip
    running = instance.status == "running"
    storage, gpu = instance.storage_rate, instance.gpu_rate
    end = instance.ends_at
    up_s = (now - instance.ran_since).total_seconds() if instance.ran_since and running else 0.0
    return {
        "id": int(instance.id),
        "ask_contract_id": instance.ask_id,
        "machine_id": machine.machine_id,
        "host_id": machine.host_id,
        "actual_status": instance.shown,
        "intended_status": instance.intended,
        "cur_state": instance.allocated,
        "next_state": instance.allocated,
        "status_msg": instance.message,
        "label": instance.label or None,
        "num_gpus": machine.num_gpus,
        "gpu_name": chip.name,
        "gpu_ram": chip.memory_mb,
        "gpu_totalram": chip.memory_mb * machine.num_gpus,
        "gpu_arch": "nvidia",
        "gpu_frac": machine.gpu_frac,
        "gpu_util": 0.0 if running else None,
        "gpu_temp": 31.0 if running else None,
        "compute_cap": chip.compute_cap,
        "bw_nvlink": 478.1 if machine.nvlink and machine.num_gpus > 1 else 0.0,
        "cuda_max_good": machine.cuda_max_good,
        "driver_version": machine.driver_version,
        "cpu_name": "AMD EPYC 9554 64-Core Processor",
        "cpu_cores": 256,
        "cpu_cores_effective": 256.0 * machine.num_gpus / 8,
        "cpu_ram": 2_063_912,
        "cpu_util": 0.0 if running else None,
        "mem_limit": None,
        "mem_usage": None,
        "vmem_usage": None,
        "disk_space": instance.disk_gb,
        "disk_usage": 0.6 if running else -1.0,
        "disk_util": 0.01 if running else -1.0,
        "dph_base": gpu,
        "dph_total": gpu + storage,
        "storage_cost": machine.storage_cost,
        "storage_total_cost": storage,
        "min_bid": machine.min_bid,
        "is_bid": instance.is_bid,
        "inet_up": machine.inet_up,
        "inet_down": machine.inet_down,
        "inet_up_cost": machine.inet_up_cost,
        "inet_down_cost": machine.inet_down_cost,
        "inet_up_billed": Decimal(instance.sent_bytes) / 1024,
        "inet_down_billed": Decimal(instance.received_bytes) / 1024,
        "image_uuid": instance.image,
        "image_args": [],
        "image_runtype": instance.runtype,
        "onstart": instance.onstart,
        "extra_env": [[name, value] for name, value in instance.env.items()],
        "jupyter_token": "0" * 64,
        "ssh_idx": "5",
        "ssh_host": None,
        "ssh_port": None,
        "public_ipaddr": None,
        "local_ipaddrs": None,
        "ports": None,
        "direct_port_count": machine.direct_port_count,
        "direct_port_start": -1,
        "direct_port_end": -1,
        "start_date": instance.made_at.timestamp(),
        "end_date": end.timestamp(),
        "duration": max(0.0, (end - now).total_seconds()),
        "time_remaining": "",
        "uptime_mins": up_s / 60 if running else None,
        "reliability2": machine.reliability,
        "verification": machine.verification,
        "hosting_type": machine.hosting_type,
        "geolocation": machine.geolocation,
        "static_ip": True,
        "external": machine.external,
        "rentable": False,
        "template_id": None,
        "template_hash_id": None,
        "template_name": None,
        "volume_info": None,
        "credit_balance": None,
        "credit_discount": None,
        **instance.addresses,
    }
