"""The GPUs of a box, and what its `nvidia-smi`, `dmesg` and `nvcc` say of them."""

from dataclasses import dataclass


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
H200 = Model("NVIDIA H200", 143771, "9.0", 700, 75.90)
A100_80GB = Model("NVIDIA A100-SXM4-80GB", 81920, "8.0", 400, 62.10)
A100_40GB = Model("NVIDIA A100-SXM4-40GB", 40960, "8.0", 400, 52.34)
L40S = Model("NVIDIA L40S", 46068, "8.9", 350, 35.12)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The GPUs of one box; `link` is what `topo -m` prints between each two of them."""

    models: tuple[Model, ...] = ()
    link: str = "NV18"
    driver: str = "550.54.15"
    cuda: str = "12.4"


NO_GPUS = Fleet()
