"""What a box answers, as far as it makes sense: a hostile or clumsy one must never crash us."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpurun.hardware.cuda import cuda_of_driver
from gpurun.hardware.models import capability_of

MOST_GPUS = 64
MOST_CHARS = 300
KIB = 1024
_NO_LIMIT = 2**60  # cgroups write a number near 2^63 for "none"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    name: str
    memory_mib: int
    compute_capability: str  # "9.0"; "" where neither driver nor name tells
    driver: str
    uuid: str = ""
    used_mib: int = 0
    split: bool = False  # MIG is on


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a box says it is; what it does not say is 0, "" or None."""

    python: str  # "3.11.7"
    cpus: int
    memory_gb: float
    disk_free_gb: float
    shm_gb: float
    user: str
    gpus: tuple[Gpu, ...] = ()
    is_root: bool = False
    has_sudo: bool = False  # without a password
    tools: frozenset[str] = frozenset()
    nvcc: str = ""  # CUDA release of the compiler
    driver_cuda: str = ""  # the newest CUDA release that the driver runs
    nvlink: bool | None = None  # between every two GPUs; None: one GPU, or it does not say
    gpu_processes: int = 0
    trouble: tuple[str, ...] = ()  # what nvidia-smi said instead of a GPU's row
    has_smi: bool = False
    date_s: int | None = None
    boot_id: str = ""
    kind: str = ""  # "container", "machine", or a hypervisor's name
    open_files: int = 0  # 0: no limit, or it does not say
    locked_kb: int = 0
    ptrace_scope: int | None = None
    download_mbit_s: float | None = None
    complete: bool = False  # the script ran to its end

    @property
    def can_install(self) -> bool:
        return "apt-get" in self.tools and (self.is_root or self.has_sudo)

    @property
    def capabilities(self) -> tuple[str, ...]:
        return capabilities(self.gpus)

    def line(self) -> str:
        named = sorted({gpu.name for gpu in self.gpus})
        gpus = f"{len(self.gpus)}x {' and '.join(named)}" if named else "no GPU"
        driver = f" (driver {self.gpus[0].driver}, CUDA {self.driver_cuda})" if self.gpus else ""
        return (
            f"{gpus}{driver}, {self.cpus} cores, {self.memory_gb:.0f} GB memory, "
            f"{self.disk_free_gb:.0f} GB disk free, /dev/shm {self.shm_gb:.2f} GB, "
            f"Python {self.python or 'none'}, user {self.user}"
        )


def capabilities(gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """The compute capabilities of these GPUs, each once, ascending."""
    found = {gpu.compute_capability for gpu in gpus} - {""}
    return tuple(sorted(found, key=lambda text: tuple(map(int, text.split(".")))))


def read(output: str) -> Hardware:
    """The script's output; the first answer to a question counts."""
    said: dict[str, str] = {}
    many: dict[str, list[str]] = {"gpu": [], "app": [], "topo": [], "tool": []}
    for line in output.splitlines():
        name, _, value = line[1:].partition(" ")
        if not line.startswith("="):
            continue
        if name in many:
            many[name].append(value)
        else:
            said.setdefault(name, plain(value))
    gpus, trouble = _gpus(many["gpu"])
    driver = gpus[0].driver if gpus else ""
    seconds = _decimal(said.get("download", "").partition(" ")[2])
    count = _decimal(said.get("download", "").partition(" ")[0])
    return Hardware(
        python=_version(said.get("python", "")),
        cpus=_cpus(said),
        memory_gb=_memory_gb(said),
        disk_free_gb=_whole(said.get("disk_kb", "")) * KIB / 1e9,
        shm_gb=_whole(said.get("shm_kb", "")) * KIB / 1e9,
        user=said.get("user", ""),
        gpus=gpus,
        is_root=said.get("uid") == "0",
        has_sudo=said.get("sudo") == "yes",
        tools=frozenset(plain(tool) for tool in many["tool"][:100]),
        nvcc=_version(said.get("nvcc", "")),
        driver_cuda=_version(said.get("cuda", "")) or cuda_of_driver(driver),
        nvlink=_all_linked(many["topo"], len(gpus)),
        gpu_processes=sum(1 for line in many["app"][:1000] if line.startswith("GPU-")),
        trouble=trouble,
        has_smi=said.get("smi") == "yes",
        date_s=_whole(said.get("date_s", "")) or None,
        boot_id=said.get("boot", ""),
        kind=said.get("kind", ""),
        open_files=_whole(said.get("open_files", "")),
        locked_kb=_whole(said.get("locked_kb", "")),
        ptrace_scope=_whole(scope) if (scope := said.get("ptrace_scope", "")) else None,
        download_mbit_s=count * 8 / seconds / 1e6 if seconds and count else None,
        complete="end" in said,
    )


def _gpus(rows: Sequence[str]) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """The GPUs, and what is no row of a GPU: nvidia-smi reports a lost one between the others."""
    gpus: list[Gpu] = []
    trouble: list[str] = []
    for row in rows[: MOST_GPUS * 2]:
        fields = [plain(field) for field in row.split(", ")]
        if len(fields) in (7, 8) and _whole(fields[2]) and len(gpus) < MOST_GPUS:
            name = fields[1]
            said = _version(fields[7]) if len(fields) == 8 else ""
            gpus.append(
                Gpu(
                    index=_whole(fields[0]),
                    name=name,
                    memory_mib=_whole(fields[2]),
                    compute_capability=said or capability_of(name),
                    driver=fields[3],
                    uuid=fields[4],
                    used_mib=_whole(fields[5]),
                    split=fields[6] == "Enabled",
                )
            )
        elif text := plain(row):
            trouble.append(text)
    return tuple(gpus), tuple(trouble[:MOST_GPUS])


def _all_linked(matrix: Sequence[str], gpus: int) -> bool | None:
    """Whether `topo -m` shows NV# between every two GPUs."""
    links = list(_links(matrix))
    if gpus < 2 or len(links) < gpus * (gpus - 1):
        return None
    return all(re.fullmatch(r"NV\d+", link) for link in links)


def _links(matrix: Sequence[str]) -> Iterator[str]:
    for line in matrix[: MOST_GPUS * 2]:
        words = _ANSI.sub("", line).split()
        if not words or not re.fullmatch(r"GPU\d+", words[0]) or "X" not in words:
            continue
        of_row = [word for word in words[1:] if re.fullmatch(r"NV\d+|X|SYS|NODE|PHB|PXB|PIX", word)]
        yield from (word for word in of_row if word != "X")


def _cpus(said: dict[str, str]) -> int:
    """Cores that a process here may use: of a shared machine a part is rented."""
    found = [_whole(said.get(name, "")) for name in ("cpus_allowed", "cpus")]
    quota, _, period = said.get("cpu_quota", "").partition(" ")
    if _whole(quota) and _whole(period):
        found.append(max(1, _whole(quota) // _whole(period)))
    return min((count for count in found if count), default=0)


def _memory_gb(said: dict[str, str]) -> float:
    total = _whole(said.get("memory_kb", "")) * KIB
    limit = _whole(said.get("memory_limit", ""))
    return (min(total, limit) if 0 < limit < _NO_LIMIT and total else total) / 1e9


def plain(text: str) -> str:
    """One printable line of bounded length."""
    flat = " ".join(text[: MOST_CHARS * 4].split())
    return "".join(c for c in flat if c.isprintable())[:MOST_CHARS]


def _whole(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else 0


def _decimal(text: str) -> float:
    return float(text) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", text) else 0.0


def _version(text: str) -> str:
    return text if re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){1,2}", text) else ""
