"""What this machine is, read once; and what cannot work on it, or works in another way, in words.

Reading is apart from judging, so that tests can judge machines that are not here.
"""

import ctypes
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from remote.overrides import ConfigError

SHM = Path("/dev/shm")
SHM_GIB = 1.0  # NCCL's and torchrun's segments of eight ranks fit into it
BFLOAT16_SINCE = FLASH_SINCE = (8, 0)
MALLOPT = {-3: 2**30, -1: 2**31 - 1}  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, in bytes


@dataclass(frozen=True, slots=True)
class Machine:
    """`capability` and what follows are of the GPU in use; None and empty without one."""

    gpus: int
    shm_gib: float | None
    nvcc: str | None
    capability: tuple[int, int] | None = None
    gpu: str = ""
    memory_gib: float = 0.0
    torch_archs: tuple[str, ...] = ()  # what this torch has code for: sm_90, compute_90, ...

    @property
    def has_bfloat16(self) -> bool:
        return self.capability is not None and self.capability >= BFLOAT16_SINCE


def look(device: torch.device) -> Machine:
    shm = shutil.disk_usage(SHM).total / 2**30 if SHM.is_dir() else None
    gpus, nvcc = torch.cuda.device_count(), shutil.which("nvcc")
    if device.type != "cuda":
        return Machine(gpus, shm, nvcc)
    properties = torch.cuda.get_device_properties(device)
    return Machine(
        gpus=gpus,
        shm_gib=shm,
        nvcc=nvcc,
        capability=(properties.major, properties.minor),
        gpu=properties.name,
        memory_gib=properties.total_memory / 2**30,
        torch_archs=tuple(torch.cuda.get_arch_list()),
    )


def keep_freed_memory() -> None:
    """Of this process, for the next tensor: by default the C library gives large blocks back at
    once, and a training on a CPU spends a tenth of its time on fetching their pages again.

    Not where the library has no such option (macOS, musl).
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        for option, value in MALLOPT.items():
            mallopt(option, value)


def choose_device(wanted: str, *, gpus: int, local_rank: int, local_ranks: int) -> torch.device:
    """`wanted` is auto, cpu or cuda; ConfigError where a process would be left without a GPU."""
    if wanted not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device={wanted}: expected auto, cpu or cuda")
    if wanted == "cpu" or (wanted == "auto" and not gpus):
        return torch.device("cpu")
    if not gpus:
        raise ConfigError(
            "device=cuda, but torch sees no GPU: compare `nvidia-smi` with"
            ' `python -c "import torch; print(torch.version.cuda)"`, or use device=cpu'
        )
    if max(local_ranks, local_rank + 1) > gpus:
        raise ConfigError(
            f"{max(local_ranks, local_rank + 1)} processes, but {gpus} GPU(s):"
            f" torchrun --nproc-per-node {gpus}"
        )
    return torch.device("cuda", local_rank)


def choose_dtype(wanted: str, machine: Machine) -> torch.dtype:
    """`wanted` is arch.forward_dtype; ConfigError for bfloat16 on a GPU that has none."""
    if wanted == "auto":
        return torch.bfloat16 if machine.has_bfloat16 else torch.float32
    if wanted == "bfloat16" and machine.capability is not None and not machine.has_bfloat16:
        raise ConfigError(
            f"arch.forward_dtype=bfloat16, but {_gpu(machine)} has none:"
            " leave arch.forward_dtype out (float32 is taken), or rent an A100, L40S, H100 or newer"
        )
    return getattr(torch, wanted)


def require_kernels(machine: Machine) -> None:
    """ConfigError where any kernel would fail with `no kernel image is available`."""
    if machine.capability is None or not machine.torch_archs:
        return
    if not any(_runs_on(arch, machine.capability) for arch in machine.torch_archs):
        raise ConfigError(no_kernel_image(machine))


def no_kernel_image(machine: Machine) -> str:
    return (
        f"this torch ({torch.__version__}) has no code for {_gpu(machine)}, only for"
        f" {', '.join(machine.torch_archs) or 'other GPUs'} (CUDA says: no kernel image is"
        " available). Install a torch built for it: pip install --force-reinstall torch"
        " --index-url https://download.pytorch.org/whl/cu128"
    )


def words(machine: Machine, *, ranks: int) -> list[str]:
    """What is done in another way here, and what may go wrong."""
    said = []
    if machine.capability is not None and machine.capability < FLASH_SINCE:
        said.append(
            f"{_gpu(machine)} has no FlashAttention, no bfloat16 and no CUDA AdamATan2: SDPA's"
            " other kernels, float32 and the optimiser in PyTorch are used"
        )
    if ranks > 1 and machine.shm_gib is not None and machine.shm_gib < SHM_GIB:
        said.append(small_shm(machine))
    return said


def small_shm(machine: Machine) -> str:
    return (
        f"/dev/shm has {(machine.shm_gib or 0) * 1024:.0f} MiB: NCCL between {machine.gpus} GPU(s)"
        " may end there with `Bus error`. Start the container with --shm-size=8g (Kubernetes: an"
        " emptyDir with medium Memory on /dev/shm), or set NCCL_SHM_DISABLE=1"
    )


def local_ranks() -> tuple[int, int]:
    """This process's number on this machine, and how many there are: as torchrun says."""
    rank = int(os.environ.get("LOCAL_RANK", 0))
    count = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE", 1)
    return rank, int(count)


def _runs_on(arch: str, capability: tuple[int, int]) -> bool:
    """Binary code runs on later GPUs of its major version, intermediate code on all later ones."""
    kind, _, digits = arch.partition("_")
    digits = digits.rstrip("af")
    if not digits.isdigit():
        return False
    built = int(digits[:-1]), int(digits[-1])
    if kind == "sm":
        return built[0] == capability[0] and built <= capability
    return built <= capability


def _gpu(machine: Machine) -> str:
    major, minor = machine.capability or (0, 0)
    return f"{machine.gpu} (compute capability {major}.{minor})"
