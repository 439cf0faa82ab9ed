"""What a box laid on tmpfs, its secrets: it is this machine's, so it does not end with the box.

Called when nobody is left in the box, so nobody lays it there again.  A file that cannot be removed
keeps no box alive.
"""

from contextlib import suppress
from pathlib import Path

TMPFS = Path("/dev/shm")  # where gpurun puts secrets on any box, as LABEL.*
OURS = "gpurun-"  # how each label begins; of a box named by hand, other programs may have files


def forget(label: str) -> None:
    for path in TMPFS.glob(f"{label}.*") if label.startswith(OURS) else ():
        with suppress(OSError):
            path.unlink()


def forget_script(label: str) -> str:
    """The same as POSIX sh, with status 0."""
    return f"rm -f {TMPFS}/{label}.* 2>/dev/null || :" if label.startswith(OURS) else ":"
