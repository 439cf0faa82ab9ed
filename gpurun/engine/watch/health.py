"""What may go wrong with a box: its kernel, memory and disk; and its newest checkpoint."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from gpurun.engine.watch.gpus import figure
from gpurun.engine.watch.metrics import unquoted_glob

KERNEL = r"NVRM|SXid|oom-kill|[Oo]ut of memory"
KERNEL_LINES = 20
# What a file of weights is called; logs and metrics grow all the time and prove nothing.
WEIGHTS = ("step_*", "*.pt", "*.pth", "*.ckpt", "*.safetensors", "*.npz", "checkpoint*", "model*")


def health_text(collected: Sequence[str]) -> str:
    """sh text: kernel messages, the memory group's out-of-memory count, disk, newest checkpoint."""
    named = " -o ".join(f"-name {shlex.quote(pattern)}" for pattern in WEIGHTS)
    roots = " ".join(unquoted_glob(glob) for glob in collected) or "."
    newest = (
        f"timeout 5 find {roots} -maxdepth 8 -type f \\( {named} \\) ! -name '*.tmp'"
        " -printf '%T@\\n' 2>/dev/null | sort -n | tail -n 1"
    )
    return (
        f"timeout 3 dmesg 2>/dev/null | grep -aE {shlex.quote(KERNEL)} | tail -n {KERNEL_LINES}"
        " | sed 's/^/kernel /'\n"
        "grep -hs '^oom_kill ' /sys/fs/cgroup/memory.events"
        " /sys/fs/cgroup/memory/memory.oom_control\n"
        "echo disk $(timeout 3 df -Pk . | tail -n 1)\n"
        f"echo checkpoint $({newest}) $(date +%s)"
    )


@dataclass(frozen=True, slots=True)
class Health:
    """What `health_text` printed; None: the box does not tell."""

    kernel: tuple[str, ...]
    oom_kills: int | None
    disk_free_gb: float | None
    checkpoint_age_s: float | None


def health(lines: Sequence[str]) -> Health:
    kernel, oom_kills, free_gb, age_s = [], None, None, None
    for line in lines:
        key, _, rest = line.partition(" ")
        words = rest.split()
        if key == "kernel":
            kernel.append(rest[:500])
        elif key == "oom_kill" and rest.isdecimal():
            oom_kills = int(rest[:18])
        elif key == "disk" and len(words) >= 4 and (free_kib := figure(words[3])) is not None:
            free_gb = free_kib * 1024 / 1e9
        elif key == "checkpoint" and len(words) == 2:
            written_s, now_s = figure(words[0]), figure(words[1])
            if written_s is not None and now_s is not None:
                age_s = max(0.0, now_s - written_s)
    return Health(tuple(kernel[-KERNEL_LINES:]), oom_kills, free_gb, age_s)
