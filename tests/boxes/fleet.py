"""The GPUs that a box can have, and the ways in which `nvidia-smi` can fail."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Model:
    """A GPU model as `nvidia-smi` describes it."""

    name: str
    memory_mib: int
    compute_cap: str
    limit_w: int
    idle_w: float


H100_SXM = Model("NVIDIA H100 80GB HBM3", 81559, "9.0", 700, 69.53)
H100_PCIE = Model("NVIDIA H100 PCIe", 81559, "9.0", 350, 46.21)
H200 = Model("NVIDIA H200", 143771, "9.0", 700, 75.9)
A100_80GB = Model("NVIDIA A100-SXM4-80GB", 81920, "8.0", 400, 62.1)
A100_40GB = Model("NVIDIA A100-SXM4-40GB", 40960, "8.0", 400, 52.34)
L40S = Model("NVIDIA L40S", 46068, "8.9", 350, 35.12)
B200 = Model("NVIDIA B200", 183359, "10.0", 1000, 140.2)


@dataclass(frozen=True, slots=True)
class Failure:
    """How `nvidia-smi` fails.  With `goes_on` it answers for the other GPUs all the same."""

    text: str
    exit_code: int
    stream: Literal["stdout", "stderr"] = "stdout"
    goes_on: bool = False


NO_DRIVER = Failure(
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure"
    " that the latest NVIDIA driver is installed and running.\n",
    9,
)
NO_DEVICES = Failure("No devices were found", 6)
MISMATCH = Failure(
    "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161", 18
)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The GPUs of one box.  Without `command` it has no `nvidia-smi` at all.

    `link` is what `topo -m` prints between each two: NV18 (H100, H200), NV12 (A100), or one of
    PIX, PXB, PHB, NODE, SYS where there is no NVLink.
    """

    models: tuple[Model, ...] = ()
    link: str = "NV18"
    driver: str = "570.124.06"
    cuda: str = "12.8"
    failure: Failure | None = None
    command: bool = True


NO_GPUS = Fleet(command=False)


@dataclass(frozen=True, slots=True)
class Reading:
    """What one GPU measures now."""

    util_percent: int
    power_w: float
    used_mib: int
    temperature_c: int


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a GPU; `pid` as the box numbers it."""

    pid: int
    name: str
    used_mib: int
    gpu: int = 0


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU in its slot."""

    index: int
    model: Model
    uuid: str
    bus: str  # as 00000000:18:00.0
    reading: Reading
