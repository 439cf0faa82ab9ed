"""Phase accept: the box as it is, read in one round trip, against what was bought."""

from dataclasses import dataclass

from gpurun.recipe import Recipe

READ_S = 60.0

SCRIPT = """
echo "python $(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)"
echo "cpus $(getconf _NPROCESSORS_ONLN)"
echo "memory_kb $(awk '/MemTotal/ {print $2}' /proc/meminfo 2>/dev/null)"
echo "disk_kb $(df -Pk . | awk 'NR == 2 {print $4}')"
echo "shm_kb $(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $2}')"
echo "user $(id -un 2>/dev/null || id -u)"
echo "date_s $(date +%s)"
if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=name,memory.total,compute_cap,driver_version \\
    --format=csv,noheader,nounits 2>&1 | sed 's/^/gpu /'
fi
"""


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    memory_mib: int
    compute_capability: str
    driver: str


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a box says it is."""

    python: str
    cpus: int
    memory_gb: float
    disk_free_gb: float
    shm_gb: float
    user: str
    gpus: tuple[Gpu, ...]

    def line(self) -> str:
        gpus = f"{len(self.gpus)}x {self.gpus[0].name}" if self.gpus else "no GPU"
        return (
            f"{gpus}, {self.cpus} cores, {self.memory_gb:.0f} GB memory, "
            f"{self.disk_free_gb:.0f} GB disk free, /dev/shm {self.shm_gb:.1f} GB, "
            f"Python {self.python}, user {self.user}"
        )


def read(output: str) -> Hardware:
    """The script's output; what a box does not tell counts as absent."""
    said: dict[str, str] = {}
    gpus: list[Gpu] = []
    for line in output.splitlines():
        key, _, value = line.partition(" ")
        if key == "gpu" and len(fields := value.split(", ")) == 4 and fields[1].isdigit():
            gpus.append(Gpu(fields[0], int(fields[1]), fields[2], fields[3]))
        else:
            said.setdefault(key, value.strip())
    return Hardware(
        python=said.get("python", ""),
        cpus=int(said.get("cpus") or 0),
        memory_gb=int(said.get("memory_kb") or 0) * 1024 / 1e9,
        disk_free_gb=int(said.get("disk_kb") or 0) * 1024 / 1e9,
        shm_gb=int(said.get("shm_kb") or 0) * 1024 / 1e9,
        user=said.get("user", ""),
        gpus=tuple(gpus),
    )


def misfits(hardware: Hardware, recipe: Recipe) -> list[str]:
    """Why this box is not the one that was ordered; empty when it is."""
    need, wrong = recipe.need, []
    if not hardware.python:
        wrong.append("it has no python3")
    elif tuple(map(int, hardware.python.split("."))) < (3, 10):
        wrong.append(f"its Python is {hardware.python}, at least 3.10 is needed")
    if hardware.disk_free_gb < need.disk_gb:
        wrong.append(
            f"{hardware.disk_free_gb:.0f} GB of disk are free, need.disk_gb is {need.disk_gb}"
        )
    if need.wants_gpu:
        if len(hardware.gpus) != need.gpu_count:
            wrong.append(f"it has {len(hardware.gpus)} GPUs, need.gpu_count is {need.gpu_count}")
        if others := {g.name for g in hardware.gpus if need.gpu.lower() not in g.name.lower()}:
            wrong.append(f"its GPU is {', '.join(sorted(others))}, need.gpu is {need.gpu}")
    return wrong
