"""What is put on a box's disk before its first boot: user, keys, sshd, rc file, GPU commands."""

import os
import re
import uuid
from pathlib import Path

from tests.boxes import minbase, registry
from tests.boxes.shape import Shape

UID = 1000
SHIMS = Path(__file__).parent / "shims"
COMMANDS = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin")
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
"""


SYSTEMD = {
    "box.target": "[Unit]\nDescription=A box\nRequires=box.service\nAfter=box.service\n",
    "box.service": "[Unit]\nDescription=Its sshd\nDefaultDependencies=no\n"
    "[Service]\nExecStart=/usr/sbin/sshd -D -e -f /etc/ssh/box.conf\n"
    "KillMode=process\n",
}


def lower(shape: Shape) -> Path:
    """The root that the box's disk lies over."""
    return minbase.root() if shape.base == "minbase" else Path("/")


def furnish(root: Path, shape: Shape, state: Path) -> None:
    """Write everything below `root`, the box's merged file system seen from outside."""
    _user(root, shape, state)
    _workspace(root, shape)
    _network(root, shape, state.name)
    _sshd(root, shape, state)
    for command in shape.without:
        remove(root, command)
    _gpu_commands(root, shape, state / "gpu")


def home(root: Path, shape: Shape) -> Path:
    return root / ("root" if shape.user == "root" else f"home/{shape.user}")


def host_key(root: Path, state: Path) -> None:
    """Put the host key of `state` where sshd reads it."""
    write(root, "etc/ssh/box_host_key", (state / "host_key").read_text(), 0o600)


def remove(root: Path, command: str) -> None:
    """Take a command out of the box, its versioned names too (python3, python3.11)."""
    name = re.compile(re.escape(command) + r"[0-9.]*")
    for folder in COMMANDS:
        for path in (root / folder).iterdir():
            if name.fullmatch(path.name):
                path.unlink()


def write(root: Path, name: str, text: str, mode: int = 0o644) -> None:
    """Write the box's file `name`, its folders too; a link in its place is replaced."""
    path = root / name
    for folder in Path(name).parents[:-1]:
        # From outside, such a link leads to this machine's own files.
        if (root / folder).is_symlink() and (root / folder).readlink().is_absolute():
            raise RuntimeError(f"/{folder} is an absolute link in the box: write /{name} elsewhere")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(mode)


def _user(root: Path, shape: Shape, state: Path) -> None:
    name = shape.user
    if name != "root":
        _add_account(root, name)
        if shape.sudo:
            write(root, "etc/sudoers.d/90-user", f"{name} ALL=(ALL) NOPASSWD:ALL\n", 0o440)
    at = home(root, shape)
    inside = str(at.relative_to(root))
    write(root, f"{inside}/.ssh/authorized_keys", (state / "key.pub").read_text(), 0o600)
    write(root, f"{inside}/.bashrc", shape.rc)
    (at / ".ssh").chmod(0o700)
    if name != "root":
        for path in [at, *at.rglob("*")]:
            os.chown(path, UID, UID)


def _add_account(root: Path, name: str) -> None:
    """As `useradd` does, in no time.  The password is one that nothing matches, not a lock."""
    for file, line in {
        "passwd": f"{name}:x:{UID}:{UID}::/home/{name}:/bin/bash",
        "group": f"{name}:x:{UID}:",
        "shadow": f"{name}:*:19000:0:99999:7:::",
    }.items():
        path = root / "etc" / file
        rows = [row.split(":") for row in path.read_text().splitlines()]
        others = [
            row for row in rows if row[0] != name and (file == "shadow" or row[2] != str(UID))
        ]
        path.write_text("".join(f"{':'.join(row)}\n" for row in [*others, line.split(":")]))


def _workspace(root: Path, shape: Shape) -> None:
    if shape.workspace == "none":
        return
    (root / "workspace").mkdir()
    if shape.workspace == "own" and shape.user != "root":
        os.chown(root / "workspace", UID, UID)


def _network(root: Path, shape: Shape, index: str) -> None:
    write(root, "etc/hostname", f"gpurun-box{index}\n")
    write(root, "etc/machine-id", f"{uuid.uuid4().hex}\n")
    write(root, "etc/hosts", f"127.0.0.1 localhost gpurun-box{index}\n")
    write(root, "etc/resolv.conf", "")
    if shape.network == "internet":
        for path, text in registry.files().items():
            write(root, path.lstrip("/"), text)


def _sshd(root: Path, shape: Shape, state: Path) -> None:
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    host_key(root, state)
    settings = SSHD.format(passwords="yes" if shape.passwords else "no")
    if shape.network == "internet" and (variables := registry.environment()):
        # Only the first SetEnv of a file counts.
        quoted = (f'"{name}={value}"' for name, value in sorted(variables.items()))
        settings += f"SetEnv {' '.join(quoted)}\n"
    write(root, "etc/ssh/box.conf", settings, 0o600)
    if shape.systemd:
        for unit, text in SYSTEMD.items():
            write(root, f"etc/systemd/system/{unit}", text)


def _gpu_commands(root: Path, shape: Shape, tables: Path) -> None:
    (root / "var/lib/gpu").mkdir(parents=True)
    (tables / "dmesg-for").write_text(f"{shape.dmesg}\n")
    for cuda in (root / "usr/local").glob("cuda*"):  # this machine's own toolkit is hidden
        cuda.unlink() if cuda.is_symlink() else cuda.rmdir()
    for command in ("dmesg", "nvidia-smi", "nvcc"):
        remove(root, command)
    write(root, "usr/bin/dmesg", (SHIMS / "dmesg").read_text(), 0o755)
    if shape.gpus.command:
        write(root, "usr/bin/nvidia-smi", (SHIMS / "nvidia-smi").read_text(), 0o755)
    if shape.nvcc:
        write(root, "usr/local/cuda/bin/nvcc", (SHIMS / "nvcc").read_text(), 0o755)
        write(root, "usr/local/cuda/release", f"{shape.nvcc}\n")
