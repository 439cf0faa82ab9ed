"""Signs of trouble on a box that do not end a training by themselves, and explain its end."""

import re
from collections.abc import Mapping
from typing import Any

from gpurun.engine.watch.gpus import GpuSample
from gpurun.engine.watch.health import Health
from gpurun.engine.watch.xid import xid_says

LOW_DISK_GB = 1.0
MOST_LINES = 20
LONGEST = 300  # characters of what is shown
_STAMP = re.compile(r"\[\s*(\d{1,12}\.\d{1,9})\]")


def plain(text: str) -> str:
    """One line of what a box printed, without anything that a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in text)[:LONGEST].strip()


def stamp(line: str) -> float | None:
    """Seconds since boot of a kernel message."""
    matched = _STAMP.match(line.strip())
    return float(matched.group(1)) if matched else None


def newer(lines: list[str], than_s: float) -> list[str]:
    """Kernel messages after this stamp; one without a stamp is as new as the one before it."""
    found, new = [], False
    for line in lines:
        at = stamp(line)
        new = new if at is None else at > than_s
        if new:
            found.append(line)
    return found


class Signs:
    """What the kernel, the memory group and the disk have said since the training began."""

    def __init__(self, kept: Mapping[str, Any]) -> None:
        self.kernel_since_s = _number(kept.get("kernel_since_s"))
        self.oom_kills_before = _number(kept.get("oom_kills_before"))
        self.kernel: list[str] = []
        self.disk_free_gb: float | None = None
        self.oom_kills = 0

    def see(self, seen: Health) -> None:
        """The first reading says what was there before."""
        if self.kernel_since_s is None:
            stamps = [at for line in seen.kernel if (at := stamp(line)) is not None]
            self.kernel_since_s = max(stamps, default=0.0)
        self.kernel = newer(list(seen.kernel), self.kernel_since_s)[-MOST_LINES:]
        if seen.oom_kills is not None:
            if self.oom_kills_before is None:
                self.oom_kills_before = seen.oom_kills
            self.oom_kills = int(seen.oom_kills - self.oom_kills_before)
        self.disk_free_gb = seen.disk_free_gb

    def trouble(self, gpus: GpuSample | None, *, broken: bool) -> str | None:
        """For people, while the training still runs."""
        said = [xid_says(line) for line in self.kernel]
        found = [says for says in dict.fromkeys(said) if says]
        if gpus is not None and gpus.trouble:
            found.append(gpus.trouble)
        if broken:
            found.append("the loss is not finite")
        if self.oom_kills > 0:
            found.append("the kernel has killed a process for want of memory")
        if self.disk_free_gb is not None and self.disk_free_gb < LOW_DISK_GB:
            found.append(f"only {self.disk_free_gb:.2f} GB of disk are free")
        return plain("; ".join(found)) or None

    def kept(self) -> dict[str, Any]:
        return {
            "kernel_since_s": self.kernel_since_s,
            "oom_kills_before": self.oom_kills_before,
        }


def _number(kept: Any) -> float | None:
    return kept if isinstance(kept, int | float) and not isinstance(kept, bool) else None
