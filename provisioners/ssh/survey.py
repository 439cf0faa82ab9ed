"""What a host said of itself, read row by row: what it does not tell counts as absent."""

from dataclasses import dataclass
from datetime import UTC, datetime

LONGEST = 500  # characters of a line


@dataclass(frozen=True, slots=True)
class Survey:
    """held_by is the label of the run that has the host: None when it is free, "" half made."""

    boot_id: str
    cpus: int
    memory_gb: int
    disk_gb: int
    unwritable: str  # the folder that keeps the workspace from being made or written; "" if none
    has_smi: bool  # nvidia-smi is there
    gpus: tuple[str, ...]  # the names of nvidia-smi
    trouble: tuple[str, ...]  # what else it says
    busy: tuple[str, ...]  # processes on the GPUs
    held_by: str | None
    created_at: datetime | None
    ends_at: datetime | None
    usd_per_hour: str
    boot_id_at_start: str
    processes: int  # of the run that has the host
    now: datetime | None  # by the host's own clock

    @property
    def overdue(self) -> bool:
        return bool(self.ends_at and self.now and self.ends_at < self.now)

    @property
    def gpu_model(self) -> str | None:
        return self.gpus[0].removeprefix("NVIDIA ") if self.gpus else None

    @classmethod
    def of(cls, output: str) -> "Survey":
        said: dict[str, str] = {}
        gpus, trouble, busy = list[str](), list[str](), list[str]()
        for line in output.splitlines():
            key, _, value = printable(line).partition(" ")
            if key == "gpu" and (parts := value.rpartition(", "))[2].strip().isdigit():
                gpus.append(parts[0])
            elif key == "gpu":
                trouble += [value.strip()] if value.strip() else []
            elif key == "busy" and value:
                busy.append(value)
            else:
                said.setdefault(key, value.strip())
        facts = [*said.get("facts", "").split(), "", "", "", ""]
        fuse = [*said.get("fuse", "").split(), "", "", "", ""]
        fuse_ends_at = _moment(fuse[3]) if fuse[1] == said.get("held") else None
        return cls(
            boot_id=said.get("boot", ""),
            cpus=_whole(said.get("cpus")),
            memory_gb=_whole(said.get("memory_kb")) * 1024 // 10**9,
            disk_gb=_whole(said.get("disk_kb")) * 1024 // 10**9,
            unwritable=said.get("unwritable", ""),
            has_smi="smi" in said,
            gpus=tuple(gpus),
            trouble=tuple(trouble),
            busy=tuple(busy),
            held_by=said.get("held"),
            created_at=_moment(facts[0]),
            ends_at=fuse_ends_at or _moment(facts[1]),  # that of the claim is of its setup
            usd_per_hour=facts[2],
            boot_id_at_start=facts[3],
            processes=_whole(said.get("processes")),
            now=_moment(said.get("now", "")),
        )


def printable(line: str) -> str:
    """What a host says is shown at a terminal: nothing in it may steer one."""
    return "".join(c if c.isprintable() else "?" for c in line)[:LONGEST]


def _whole(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else 0


def _moment(text: str) -> datetime | None:
    seconds = _whole(text)
    return datetime.fromtimestamp(seconds, UTC) if 0 < seconds < 10**10 else None
