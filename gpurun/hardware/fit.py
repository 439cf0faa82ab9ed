"""Whether a box is what was ordered: a line for each thing, a sentence for each misfit."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpurun.hardware.cuda import torch_misfit
from gpurun.hardware.models import is_the
from gpurun.hardware.read import Gpu, Hardware, capabilities
from gpurun.hardware.script import OLDEST_PYTHON
from gpurun.model import Attempt
from gpurun.recipe import Recipe

CLOCK_OFF_S = 300
BUSY_MIB = 2048  # a driver with ECC and persistence keeps under 1 GiB for itself
DISK_SHARE = 0.85  # of the disk that was paid for the image and the file system take their part
NCCL_GB_PER_GPU = 0.010  # its largest segment in /dev/shm is 9.6 MB (NVIDIA/nccl#342)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at.  `says` of one that is not ok can stand after "the box: "."""

    what: str
    says: str
    ok: bool = True


def misfits(hardware: Hardware, recipe: Recipe, bought: Attempt | None = None) -> list[str]:
    """Why this box is not the one that was ordered; empty when it is."""
    return [check.says for check in checks(hardware, recipe, bought) if not check.ok]


def checks(
    hardware: Hardware,
    recipe: Recipe,
    bought: Attempt | None = None,
    *,
    clock_off_s: float | None = None,
    running: bool = False,
) -> list[Check]:
    """Every check, in the order of a table.

    `bought` adds what the offer promised; `clock_off_s` is how far the box's clock is off ours;
    while our own training is `running`, its GPUs may be in use.
    """
    found = [Check("GPUs", "none are asked for")]
    if recipe.need.wants_gpu:
        found = [*_gpus(hardware, recipe, bought, running)]
    return [*found, *_machine(hardware, recipe), *_clock(clock_off_s)]


def fitting(hardware: Hardware, recipe: Recipe) -> tuple[Gpu, ...]:
    """The GPUs that are the model asked for."""
    if not recipe.need.wants_gpu:
        return ()
    wish = recipe.need.gpu
    return tuple(gpu for gpu in hardware.gpus if is_the(wish, gpu.name, gpu.memory_mib))


def shm_needed_gb(recipe: Recipe) -> float:
    """What the training will keep in /dev/shm: loader workers, and NCCL between several GPUs.

    Every worker of every rank has `prefetch` batches ready, and each rank holds one in its hands.
    Our own trainer prefetches in threads and declares no loader.
    """
    loader = recipe.train.loader if recipe.train else None
    batches = recipe.gpus * (loader.workers * loader.prefetch + 1) if loader else 0
    nccl = recipe.gpus * NCCL_GB_PER_GPU if recipe.gpus > 1 else 0.0
    computed = (batches * float(loader.batch_mb) / 1000 if loader else 0.0) + nccl
    return max(computed, float(recipe.need.shm_gb or 0))


def _gpus(
    hardware: Hardware, recipe: Recipe, bought: Attempt | None, running: bool
) -> Iterator[Check]:
    need, gpus = recipe.need, hardware.gpus
    names = ", ".join(_counted(gpus)) or "none"
    if not hardware.has_smi:
        yield Check("GPUs", "it has no NVIDIA driver: nvidia-smi is not there", False)
    elif hardware.trouble:
        said = "; ".join(dict.fromkeys(hardware.trouble))
        yield Check("GPUs", f"nvidia-smi shows {len(gpus)} GPUs and says: {said}", False)
    elif len(gpus) < need.gpu_count:
        yield Check("GPUs", f"it has {len(gpus)} GPUs, need.gpu_count is {need.gpu_count}", False)
    elif bought is not None and len(gpus) < bought.gpu_count:
        yield Check("GPUs", f"it has {len(gpus)} GPUs, the offer said {bought.gpu_count}", False)
    else:
        yield Check("GPUs", names)
    if not gpus:
        return
    yield _model(hardware, recipe, bought, names)
    if need.vram_gb is not None:
        least = min(gpu.memory_mib for gpu in gpus) * 2**20 / 1e9
        says = f"{least:.1f} GB each, need.vram_gb is {need.vram_gb}"
        ok = least >= need.vram_gb
        yield Check("GPU memory", says if ok else f"its GPUs have {says}", ok)
    if split := [gpu.index for gpu in gpus if gpu.split]:
        yield Check("MIG", f"GPU {', '.join(map(str, split))} is split in parts (MIG is on)", False)
    yield _use(hardware, running)
    yield from _nvlink(hardware, recipe)
    yield _driver(hardware, recipe)


def _model(hardware: Hardware, recipe: Recipe, bought: Attempt | None, names: str) -> Check:
    need = recipe.need
    fit = fitting(hardware, recipe)
    if len(fit) < min(need.gpu_count, len(hardware.gpus)):
        says = f"it has {names}, need.gpu is {need.gpu}"
        return Check(
            "GPU model", f"only {len(fit)} of its GPUs fit: {says}" if fit else says, False
        )
    promised = bought.gpu if bought is not None else None
    if promised and not any(is_the(promised, gpu.name, gpu.memory_mib) for gpu in fit):
        return Check("GPU model", f"the offer said {promised}, it has {names}", False)
    return Check("GPU model", f"{need.gpu}, compute capability {_listed(capabilities(fit))}")


def _use(hardware: Hardware, running: bool) -> Check:
    busy = [gpu for gpu in hardware.gpus if gpu.used_mib > BUSY_MIB]
    used = ", ".join(f"GPU {gpu.index}: {gpu.used_mib} MiB" for gpu in busy)
    if (busy or hardware.gpu_processes) and not running:
        says = f"its GPUs are in use ({used or f'{hardware.gpu_processes} processes'})"
        return Check("GPU use", says, False)
    return Check("GPU use", used or "free")


def _nvlink(hardware: Hardware, recipe: Recipe) -> Iterator[Check]:
    if len(hardware.gpus) < 2:
        return
    how = {True: "between every two GPUs", False: "not between every two GPUs", None: "unknown"}
    says, wanted = how[hardware.nvlink], recipe.need.nvlink
    if wanted and hardware.nvlink is None:
        yield Check("NVLink", "it does not tell how its GPUs are joined; need.nvlink is on", False)
    elif wanted and not hardware.nvlink:
        yield Check("NVLink", "its GPUs are not joined by NVLink, need.nvlink is on", False)
    else:
        yield Check("NVLink", says)


def _driver(hardware: Hardware, recipe: Recipe) -> Check:
    says = f"{hardware.gpus[0].driver}, runs CUDA up to {hardware.driver_cuda or 'unknown'}"
    if recipe.setup.torch and recipe.setup.device == "cuda":
        caps = capabilities(fitting(hardware, recipe))
        if why := torch_misfit(recipe.setup.torch, hardware.driver_cuda, caps):
            return Check("driver", why, False)
    return Check("driver", says)


def _machine(hardware: Hardware, recipe: Recipe) -> Iterator[Check]:
    need = recipe.need
    yield Check("cores and memory", f"{hardware.cpus} cores, {hardware.memory_gb:.0f} GB")
    says = f"{hardware.disk_free_gb:.0f} GB of disk are free, need.disk_gb is {need.disk_gb}"
    yield Check("disk", says, hardware.disk_free_gb >= DISK_SHARE * need.disk_gb)
    needed = shm_needed_gb(recipe)
    says = f"{hardware.shm_gb:.2f} GB"
    if hardware.shm_gb < needed:
        says = (
            f"its /dev/shm has {says}, the training needs {needed:.2f} GB (train.loader, "
            "NCCL or need.shm_gb)"
        )
    yield Check("/dev/shm", says, hardware.shm_gb >= needed)
    yield _python(hardware, recipe)
    yield _user(hardware)
    shown = ("pip", "uv", "nvcc", "tmux", "rsync", "git")
    there = [tool for tool in shown if tool in hardware.tools]
    lacks = [tool for tool in shown if tool not in hardware.tools]
    without = f"; without {', '.join(lacks)}" if lacks else ""
    yield Check("tools", f"{', '.join(there) or 'none'}{without}")
    yield _download(hardware, recipe)
    files = hardware.open_files or "no limit, or unknown"
    scope = "unknown" if hardware.ptrace_scope is None else hardware.ptrace_scope
    yield Check("limits", f"{files} open files; ptrace scope {scope}")
    yield Check("kind", f"{hardware.kind or 'unknown'}; boot id {hardware.boot_id or 'unknown'}")


def _python(hardware: Hardware, recipe: Recipe) -> Check:
    """apt may install it where the recipe names it; nothing is put on a box unasked."""
    oldest = ".".join(map(str, OLDEST_PYTHON))
    if not hardware.python:
        if hardware.can_install and "python3" in recipe.setup.apt:
            return Check("Python", "none yet; setup.apt installs it")
        return Check("Python", "it has no python3, and setup.apt does not install it", False)
    if tuple(map(int, hardware.python.split(".")))[:2] < OLDEST_PYTHON:
        says = f"its Python is {hardware.python}, at least {oldest} is needed"
        return Check("Python", says, False)
    return Check("Python", hardware.python)


def _user(hardware: Hardware) -> Check:
    rights = "root" if hardware.is_root else "may use sudo" if hardware.has_sudo else "no sudo"
    return Check("user", f"{hardware.user or 'unknown'} ({rights})")


def _download(hardware: Hardware, recipe: Recipe) -> Check:
    wanted, rate = recipe.need.download_mbit_s, hardware.download_mbit_s
    says = "not measured" if rate is None else f"{rate:.0f} Mbit/s or more"
    if wanted is None or (rate is not None and rate >= wanted):
        return Check("download", says)
    if rate is None:
        says = f"it could not reach the package registry, need.download_mbit_s is {wanted}"
    else:
        says = f"it downloads at {rate:.0f} Mbit/s, need.download_mbit_s is {wanted}"
    return Check("download", says, False)


def _clock(off_s: float | None) -> Iterator[Check]:
    if off_s is None:
        return
    if abs(off_s) <= CLOCK_OFF_S:
        yield Check("clock", f"{abs(off_s):.0f} s off ours")
    else:
        which = "ahead of" if off_s > 0 else "behind"
        yield Check("clock", f"its clock is {abs(off_s) / 60:.0f} minutes {which} ours", False)


def _counted(gpus: tuple[Gpu, ...]) -> list[str]:
    names = [gpu.name for gpu in gpus]
    return [f"{names.count(name)}x {name}" for name in dict.fromkeys(names)]


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(values) or "unknown"
