"""What a rented machine can look like: the field names are the differences that break programs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.boxes.gpus import NO_GPUS, Fleet

PRINTING_RC = 'echo "Welcome to your machine!"; echo "motd: disk 3 % used" >&2\n'
# What a marketplace's images do to whoever logs in: the command that was asked for never runs.
TMUX_RC = 'if [ -z "$TMUX" ]; then tmux attach-session; exit; fi\n'


@dataclass(frozen=True, slots=True)
class Shape:
    """One machine for rent.

    `base` is the root it starts from: this machine's own files (home, temporary and this
    repository hidden), or a Debian of little more than sshd and python3.
    `without` names commands that it lacks.  `share` are host paths seen in it, read-only.
    `workspace` says who owns /workspace.  `rc` is the text of the user's ~/.bashrc.
    """

    gpus: Fleet = NO_GPUS
    user: str = "root"  # any other is uid 1000
    sudo: bool = True  # without a password, for a user who is not root
    rc: str = ""
    shm_mb: int = 64  # Docker's default
    disk_mb: int = 400_000
    workspace: Literal["own", "root's", "read-only"] = "own"
    without: tuple[str, ...] = ()
    passwords: bool = False  # sshd asks for one, and none is right
    readable_dmesg: bool = False
    nvcc: str = ""  # CUDA release of /usr/local/cuda/bin/nvcc, as "12.4"
    base: Literal["host", "minbase"] = "host"
    network: Literal["none", "internet"] = "none"
    share: tuple[Path, ...] = ()
