"""The machines of the emulated Vast market: prices, places, and every trap of a real search.

Units as the API has them: storage_cost is $ per GB and month of 720 hours, inet_*_cost $ per GB,
memory MB, bandwidth Mbit/s.  GPU prices are for the whole machine, per hour.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

MONTH_H = 720
DAY_S = 86400


@dataclass(frozen=True, slots=True)
class Chip:
    """A GPU model: what Vast calls it, and which model of tests/boxes is in the box."""

    name: str
    model: str
    memory_mb: int
    compute_cap: int
    tflops: float
    dlperf: float
    bandwidth_gbs: float


H100_SXM = Chip("H100 SXM", "H100_SXM", 81559, 900, 53.4, 145.2, 2681.9)
H100_PCIE = Chip("H100 PCIE", "H100_PCIE", 81559, 900, 40.9, 104.6, 1620.4)
H100_NVL = Chip("H100 NVL", "H100_NVL", 95830, 900, 48.1, 120.8, 2991.7)
H200 = Chip("H200", "H200", 143771, 900, 53.4, 155.9, 3809.2)
A100_SXM4 = Chip("A100 SXM4", "A100_80GB", 81920, 800, 19.5, 72.3, 1572.1)
A100_SXM4_40 = Chip("A100 SXM4", "A100_40GB", 40960, 800, 19.5, 68.9, 1301.6)
A100_PCIE = Chip("A100 PCIE", "A100_PCIE", 81920, 800, 19.5, 66.4, 1289.9)
L40S = Chip("L40S", "L40S", 46068, 890, 73.2, 61.0, 735.3)
RTX_4090 = Chip("RTX 4090", "RTX_4090", 24564, 890, 81.5, 94.1, 896.6)
CHIPS = (
    H100_SXM,
    H100_PCIE,
    H100_NVL,
    H200,
    A100_SXM4,
    A100_SXM4_40,
    A100_PCIE,
    L40S,
    RTX_4090,
)


@dataclass(frozen=True, slots=True)
class Machine:
    """One offer's machine.  `flaw` says, for readers, what is wrong with it."""

    machine_id: int
    chip: Chip
    num_gpus: int
    usd_per_hour: Decimal
    min_bid: Decimal
    storage_cost: Decimal = Decimal("0.15")
    stopped_storage_cost: Decimal = Decimal("0.20")
    inet_up: float = 1650.3
    inet_down: float = 1801.7
    inet_up_cost: Decimal = Decimal("0.0026")
    inet_down_cost: Decimal = Decimal("0.0013")
    nvlink: bool = True
    reliability: float = 0.9967
    verification: str = "verified"
    hosting_type: int = 1
    cuda_max_good: float = 12.8
    driver_version: str = "570.124.06"
    disk_space: float = 3000.0
    duration_s: int = 60 * DAY_S
    direct_port_count: int = 98
    geolocation: str | None = "Iceland, IS"
    external: bool = False
    gpu_frac: float = 1.0
    flaw: str = ""

    @property
    def host_id(self) -> int:
        return 50_000 + self.machine_id // 3

    def storage_usd_per_hour(self, disk_gb: Decimal, stopped: bool = False) -> Decimal:
        rate = self.stopped_storage_cost if stopped else self.storage_cost
        return rate * disk_gb / MONTH_H


def _machine(machine_id: int, chip: Chip, num_gpus: int, usd_per_hour: str) -> Machine:
    price = Decimal(usd_per_hour)
    return Machine(machine_id, chip, num_gpus, price, min_bid=(price * 3 / 5).quantize(price))


def market() -> tuple[Machine, ...]:
    """The fixed market: good machines first, then those that a careful buyer refuses."""
    good = _machine(21_004, H100_SXM, 4, "7.52")
    return (
        good,
        _machine(21_007, H100_SXM, 4, "7.96"),
        _machine(21_010, H100_SXM, 4, "8.40"),
        _machine(21_013, H100_SXM, 8, "15.92"),
        _machine(21_016, H100_SXM, 2, "3.99"),
        _machine(21_019, H100_SXM, 1, "1.99"),
        _machine(21_022, H100_SXM, 1, "2.14"),
        replace(_machine(21_025, H100_NVL, 4, "7.84"), nvlink=False),
        replace(_machine(21_028, H100_PCIE, 4, "6.96"), nvlink=False),
        replace(_machine(21_031, H100_PCIE, 1, "1.74"), nvlink=False),
        _machine(21_034, H200, 4, "11.20"),
        _machine(21_037, H200, 1, "2.85"),
        _machine(21_040, A100_SXM4, 4, "3.68"),
        _machine(21_043, A100_SXM4, 1, "0.93"),
        _machine(21_046, A100_SXM4_40, 4, "2.64"),
        replace(_machine(21_049, A100_PCIE, 1, "0.81"), nvlink=False),
        replace(_machine(21_052, L40S, 1, "0.53"), nvlink=False),
        replace(_machine(21_055, RTX_4090, 1, "0.31"), nvlink=False, hosting_type=0),
        *_flawed(good),
    )


def _flawed(good: Machine) -> Iterator[Machine]:
    """Cheaper than the good ones, each with one flaw."""
    price = good.usd_per_hour - Decimal("1.50")
    flaws = (
        replace(good, flaw="its host fails often", reliability=0.71),
        replace(good, flaw="not verified", verification="unverified", hosting_type=0),
        replace(good, flaw="its offer ends in an hour", duration_s=3600),
        replace(good, flaw="no direct ports", direct_port_count=0),
        replace(good, flaw="traffic is dear", inet_down_cost=Decimal("0.05"), inet_down=94.2),
        replace(good, flaw="a small disk", disk_space=60.0),
        replace(good, flaw="an old driver", cuda_max_good=11.8, driver_version="520.61.05"),
        replace(good, flaw="no NVLink", nvlink=False, geolocation=None),
    )
    for number, machine in enumerate(flaws):
        yield replace(machine, machine_id=21_100 + 3 * number, usd_per_hour=price)


def wide_market(count: int) -> tuple[Machine, ...]:
    """As many machines as asked for, the fixed market among them, for measuring a client."""
    machines = list(market())
    chips = itertools.cycle(CHIPS)
    for number in range(max(0, count - len(machines))):
        gpus = 2 ** (number % 4)
        price = f"{Decimal(gpus) * (Decimal('1.10') + Decimal(number % 97) / 40):.2f}"
        machines.append(_machine(30_000 + number, next(chips), gpus, price))
    return tuple(machines[:count])
