"""A state directory on a disk of its own, which can be full; its room is lent, not written."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOM = "2g"  # `local` offers what is free, and a recipe wants a gigabyte
NAME = "gpurun-chaos-"


@contextmanager
def small_disk(root: Path) -> Iterator[None]:
    """Mounted at `root` until the block ends; one that a killed session left is taken away."""
    for mounted in Path("/proc/mounts").read_text().splitlines():
        name, at, *_ = mounted.split()
        if name.startswith(NAME) and not Path(f"/proc/{name.removeprefix(NAME)}").exists():
            _unmount(at)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    options = f"size={ROOM},mode=700"
    _run("mount", "-t", "tmpfs", "-o", options, f"{NAME}{os.getpid()}", str(root))
    try:
        yield
    finally:
        _unmount(str(root))


def fill(root: Path) -> None:
    """No page more than there is now; somebody may write meanwhile, so again until it holds."""
    for _ in range(100):
        status = os.statvfs(root)
        used = (status.f_blocks - status.f_bfree) * status.f_frsize
        with suppress(subprocess.CalledProcessError):
            return _run("mount", "-o", f"remount,size={used}", str(root))
    raise RuntimeError(f"{root} cannot be filled")


def free(root: Path) -> None:
    _run("mount", "-o", f"remount,size={ROOM}", str(root))


def _unmount(at: str) -> None:
    _run("umount", "--lazy", at)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
