"""What the GPUs of a box do, sampled on the box in the background.

`nvidia-smi` hangs for ever on a GPU that is lost, past any signal, and whatever it writes to stays
open.  So it never runs in a look: a look starts the next sample and reads what the last one left.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from gpurun.phases import KEEP

GPU_EVERY_S = 10
GPU_STALE_S = 45.0
GPU_HANGS_S = 60.0
GPU_FIELDS = "utilization.gpu,power.draw,power.limit,memory.used"
BUSY_PERCENT = 50
SPINNING_PERCENT = 90
MOST_LINES = 80
LONGEST_TROUBLE = 500  # characters
NEVER_S = 1e9
WORKING_SHARE = 0.4  # of the power limit; a GPU that only waits in a collective draws less


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as `nvidia-smi` reads it; None is `[N/A]`."""

    util_percent: float | None
    power_w: float | None
    limit_w: float | None
    used_mib: float | None

    @property
    def computes(self) -> bool:
        """Busy, and drawing what real work draws."""
        return (self.util_percent or 0) >= BUSY_PERCENT and self._share() >= WORKING_SHARE

    @property
    def spins(self) -> bool:
        """Fully busy at low power: it waits in a collective."""
        busy = (self.util_percent or 0) >= SPINNING_PERCENT
        return busy and 0 < self._share() < WORKING_SHARE

    def _share(self) -> float:
        """Power as a share of its limit; 0 where the GPU does not tell."""
        return self.power_w / self.limit_w if self.power_w and self.limit_w else 0.0


@dataclass(frozen=True, slots=True)
class GpuSample:
    """All GPUs at one moment, `age_s` before the look; `trouble` is what is no row of figures."""

    age_s: float
    gpus: tuple[Gpu, ...]
    trouble: str = ""

    @property
    def fresh(self) -> bool:
        return bool(self.gpus) and self.age_s <= GPU_STALE_S

    @property
    def compute(self) -> bool:
        """Every GPU does real work."""
        return self.fresh and all(gpu.computes for gpu in self.gpus)

    @property
    def spin(self) -> bool:
        """Some GPU waits in a collective and none computes."""
        return (
            self.fresh
            and any(g.spins for g in self.gpus)
            and not any(g.computes for g in self.gpus)
        )

    def idle(self, below_percent: float) -> bool:
        """Every GPU is known to do nothing."""
        used = [gpu.util_percent for gpu in self.gpus]
        return self.fresh and all(u is not None and u < below_percent for u in used)


def gpu_text() -> str:
    """sh text: the newest sample and its age; when it is old, the next one is begun."""
    out, pid = f"{KEEP}/gpu.txt", f"{KEEP}/gpu.pid"
    query = f"nvidia-smi --query-gpu={GPU_FIELDS} --format=csv,noheader,nounits"
    sample = (
        f"echo $$ $1 > {pid}; {{ echo $1; {query} 2>&1 | head -n 64; }} > {out}.tmp; "
        f"mv {out}.tmp {out}; rm -f {pid}"
    )
    return (
        "command -v nvidia-smi >/dev/null 2>&1 || exit 0\n"
        "read up rest </proc/uptime; up=${up%.*}; age=none; runs=\n"
        f"if [ -s {out} ]; then read at <{out}; age=$((up - at)); fi\n"
        f"if [ -s {pid} ]; then read runs since <{pid}; fi\n"
        'if [ -n "$runs" ] && kill -0 "$runs" 2>/dev/null; then echo busy $((up - since))\n'
        f'elif [ "$age" = none ] || [ "$age" -lt 0 ] || [ "$age" -ge {GPU_EVERY_S} ]; then\n'
        f"sh -c {shlex.quote(sample)} sh $up </dev/null >/dev/null 2>&1 &\nfi\n"
        f'if [ "$age" != none ]; then echo age $age; tail -n +2 {out}; fi'
    )


def gpu_sample(lines: Sequence[str]) -> GpuSample | None:
    """What `gpu_text` printed; None without GPUs, or before their first sample."""
    said, rows = dict[str, float](), list[str]()
    for line in lines[:MOST_LINES]:
        key, _, rest = line.partition(" ")
        if key in ("busy", "age") and key not in said and (seconds := figure(rest)) is not None:
            said[key] = seconds
        else:
            rows.append(line)
    odd = [row.strip() for row in rows if row.strip() and _gpu(row) is None]
    trouble = " ".join(odd)[:LONGEST_TROUBLE]
    if said.get("busy", 0) > GPU_HANGS_S:
        trouble = f"nvidia-smi has not answered for {said['busy']:.0f} s. {trouble}".strip()
    if said.get("age", -1) < 0:
        return GpuSample(NEVER_S, (), trouble) if trouble else None
    gpus = [gpu for row in rows if (gpu := _gpu(row)) is not None]
    return GpuSample(said["age"], tuple(gpus), trouble)


def figure(word: str) -> float | None:
    """A figure as commands print it; None of anything else."""
    return float(word) if re.fullmatch(r"-?\d{1,12}(\.\d{1,12})?", word.strip()) else None


def _gpu(row: str) -> Gpu | None:
    words = [word.strip() for word in row.split(",")]
    if len(words) != 4 or not any(re.fullmatch(r"\d+(\.\d+)?", word) for word in words):
        return None
    return Gpu(*map(figure, words))
