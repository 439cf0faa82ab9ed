"""What is put on a box's disk before its first boot: user, keys, sshd, rc file, shims."""

import os
import shutil
from pathlib import Path

from tests.boxes.shape import Shape

UID = 1000
SSHD = """\
Port 22
HostKey /etc/ssh/box_host_key
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication {passwords}
KbdInteractiveAuthentication no
PermitRootLogin yes
Subsystem sftp internal-sftp
UseDNS no
MaxStartups 200:30:400
MaxSessions 100
AcceptEnv LANG LC_*
"""


def lower(shape: Shape) -> Path:
    """The root that the box's disk lies over."""
    assert shape.base == "host"
    return Path("/")


def furnish(root: Path, shape: Shape, state: Path) -> None:
    """Write everything below `root`, the box's merged file system seen from outside."""
    home = add_user(root, shape)
    write(home / ".ssh" / "authorized_keys", (state / "key.pub").read_text(), 0o600)
    write(home / ".bashrc", shape.rc)
    (home / ".ssh").chmod(0o700)
    give(home, shape)
    write(root / "etc/hosts", f"127.0.0.1 localhost gpurun-box{state.name}\n")
    replace(root / "etc/resolv.conf", "")
    for old in (root / "etc/ssh").glob("ssh_host_*"):
        old.unlink()
    write(
        root / "etc/ssh/box.conf",
        SSHD.format(passwords="yes" if shape.passwords else "no"),
        0o600,
    )
    host_key(root, state)
    (root / "workspace").mkdir(exist_ok=True)
    if shape.workspace == "own" and shape.user != "root":
        os.chown(root / "workspace", UID, UID)


def host_key(root: Path, state: Path) -> None:
    write(root / "etc/ssh/box_host_key", (state / "host_key").read_text(), 0o600)


def add_user(root: Path, shape: Shape) -> Path:
    """Make the user; return the home directory, seen from outside."""
    name = shape.user
    if name == "root":
        return root / "root"
    for file, line in {
        "passwd": f"{name}:x:{UID}:{UID}::/home/{name}:/bin/bash",
        "group": f"{name}:x:{UID}:",
        "shadow": f"{name}:*:19000:0:99999:7:::",
    }.items():
        path = root / "etc" / file
        others = [
            other
            for other in path.read_text().splitlines()
            if other.split(":")[0] != name and other.split(":")[2] != str(UID)
        ]
        path.write_text("\n".join([*others, line, ""]))
    if shape.sudo:
        write(root / "etc/sudoers.d/90-user", f"{name} ALL=(ALL) NOPASSWD:ALL\n", 0o440)
    return root / "home" / name


def give(home: Path, shape: Shape) -> None:
    home.chmod(0o755 if shape.user != "root" else 0o700)
    if shape.user != "root":
        for path in [home, *home.rglob("*")]:
            os.chown(path, UID, UID)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def replace(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file where there may be a link."""
    path.unlink(missing_ok=True)
    write(path, text, mode)


def copy(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, to)
