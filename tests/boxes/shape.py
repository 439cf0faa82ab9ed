"""What a rented machine can look like: the fields are the differences that break programs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.boxes.fleet import (
    A100_40GB,
    A100_80GB,
    H100_PCIE,
    H100_SXM,
    H200,
    L40S,
    NO_DEVICES,
    NO_DRIVER,
    NO_GPUS,
    Fleet,
)

PRINTING_RC = 'echo "Welcome to your machine!"\necho "Have fun: https://example.invalid" >&2\n'
# Some images put whoever logs in into tmux: the command that was asked for never runs.
TMUX_RC = """\
if [ -z "$TMUX" ] && [ ! -e ~/.no_auto_tmux ]; then
  tmux attach-session || tmux new-session
  exit
fi
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """One machine for rent."""

    gpus: Fleet = NO_GPUS
    user: str = "root"  # any other has uid 1000
    sudo: bool = True  # without a password, for a user who is not root
    rc: str = ""  # the text of the user's ~/.bashrc
    shm_mb: int = 64  # Docker's default
    disk_mb: int = 400_000
    workspace: Literal["own", "root's", "read-only", "none"] = "own"  # whose /workspace is
    without: tuple[str, ...] = ()  # commands that it lacks
    systemd: bool = False  # process 1 is systemd, with sshd and nothing else to run
    cgroups: bool = False  # root may make cgroups in /sys/fs/cgroup, as in a VM
    passwords: bool = False  # sshd asks for one, and none is right
    dmesg: Literal["nobody", "root", "anyone"] = "nobody"  # who may read it
    nvcc: str = ""  # the CUDA release of /usr/local/cuda/bin/nvcc, as "12.4"
    # This machine's own files (its homes, temporary files and this repository hidden), or a Debian
    # of little more than sshd and python3.
    base: Literal["host", "minbase"] = "host"
    network: Literal["none", "internet"] = "none"
    share: tuple[Path, ...] = ()  # paths of this machine that are seen in the box, read-only


H100X4 = Shape(gpus=Fleet((H100_SXM,) * 4), shm_mb=16_384)
H100X4_PCIE = Shape(gpus=Fleet((H100_PCIE,) * 4, link="NODE"), shm_mb=16_384)
A100X4 = Shape(gpus=Fleet((A100_80GB,) * 4, link="NV12"), shm_mb=16_384)
A100X4_40GB = Shape(gpus=Fleet((A100_40GB,) * 4, link="NV12"), shm_mb=16_384)
H200X8 = Shape(gpus=Fleet((H200,) * 8), shm_mb=16_384)
L40SX1 = Shape(gpus=Fleet((L40S,), link="PIX"), shm_mb=16_384)
MIXED = Shape(gpus=Fleet((H100_SXM, H100_SXM, A100_80GB, A100_80GB), link="SYS"), shm_mb=16_384)
WITHOUT_DRIVER = Shape(gpus=Fleet(failure=NO_DRIVER))
WITHOUT_DEVICES = Shape(gpus=Fleet(failure=NO_DEVICES))
WITHOUT_GPUS = Shape()
UBUNTU_VM = Shape(
    gpus=Fleet((H100_SXM,) * 4),
    user="ubuntu",
    workspace="none",
    systemd=True,
    shm_mb=16_384,
    dmesg="root",
)
FROM_NOTHING = Shape(gpus=Fleet((H100_SXM,) * 4), base="minbase", network="internet", shm_mb=16_384)
