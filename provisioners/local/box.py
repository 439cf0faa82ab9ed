"""The record of a box: what proves, to whoever comes later, which processes are its own."""

import json
import shlex
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from gpurun.clock import Clock
from gpurun.model import InstanceState
from provisioners.local import processes
from provisioners.local.processes import Process
from provisioners.local.strategies import Cage

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_OWN_NAMESPACE = Path("/proc/self/ns/pid")


@dataclass(frozen=True, slots=True)
class Box:
    """What box.json holds."""

    cage: Cage
    boot_id: str
    pid_namespace: str  # pids of another one mean nothing here, and a pid alone must not be killed
    created_at: datetime
    usd_per_hour: Decimal
    gpu: str | None
    gpu_count: int

    def state(self, clock: Clock) -> InstanceState:
        if self.boot_id != clock.boot_id:
            return InstanceState.STOPPED
        if self.pid_namespace != own_namespace():
            return InstanceState.UNKNOWN
        if processes.alive(self.cage.init):
            return InstanceState.RUNNING
        return InstanceState.STOPPED

    def same_boot_script(self, *, otherwise: int) -> str:
        """POSIX sh: after a reboot, when its pids mean nothing, exit with this status."""
        if not _BOOT_ID.exists():
            return ""
        return f'[ "$(cat {_BOOT_ID})" = {shlex.quote(self.boot_id)} ] || exit {otherwise}\n'

    def write(self, path: Path) -> None:
        init = self.cage.init
        text = json.dumps(
            {
                "label": self.cage.label,
                "containment": self.cage.strategy,
                "cgroup": self.cage.cgroup,
                "init": {"pid": init.pid, "start": init.start},
                "boot_id": self.boot_id,
                "pid_namespace": self.pid_namespace,
                "created_at": self.created_at.isoformat(),
                "usd_per_hour": str(self.usd_per_hour),
                "gpu": self.gpu,
                "gpu_count": self.gpu_count,
            },
            indent=1,
        )
        part = path.with_name(f"{path.name}.part")
        part.write_text(text)
        part.replace(path)


def read(path: Path) -> Box | None:
    """None where there is no record; ValueError where it makes no sense."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        init = Process(int(found["init"]["pid"]), str(found["init"]["start"]), parent=0, session=0)
        return Box(
            cage=Cage(found["containment"], found["label"], init, found["cgroup"]),
            boot_id=found["boot_id"],
            pid_namespace=found["pid_namespace"],
            created_at=datetime.fromisoformat(found["created_at"]),
            usd_per_hour=Decimal(found["usd_per_hour"]),
            gpu=found["gpu"],
            gpu_count=found["gpu_count"],
        )
    except (KeyError, TypeError, ArithmeticError) as error:
        raise ValueError(f"{path}: {error!r}") from error


def own_namespace() -> str:
    return str(_OWN_NAMESPACE.readlink()) if _OWN_NAMESPACE.is_symlink() else ""
