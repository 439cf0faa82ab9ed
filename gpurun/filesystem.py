"""On what kind of file system a path lies, and whether that is another machine's.

Linux tells by its table of mounts; elsewhere (macOS) the program `mount` does.
"""

import re
import subprocess
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
NETWORK_PREFIXES = ("nfs", "smb")
NETWORK = {
    *("9p", "afpfs", "afs", "beegfs", "ceph", "cifs", "davfs", "glusterfs", "gpfs", "lustre"),
    *("ncpfs", "orangefs", "prl_fs", "pvfs2", "vboxsf", "virtiofs", "webdav"),
}
NETWORK_FUSE = {
    *("blobfuse", "blobfuse2", "ceph", "ceph-fuse", "curlftpfs", "davfs", "gcsfuse", "geesefs"),
    *("glusterfs", "goofys", "grpcfuse", "juicefs", "mfs", "mount-s3", "mountpoint-s3", "rclone"),
    *("s3fs", "s3ql", "seaweedfs", "smbnetfs", "sshfs", "vmhgfs-fuse"),
}
_SAID = re.compile(r".+? on (?P<point>/.*) \((?P<kind>[^,()]+)[^()]*\)")


def kind_of(path: Path, mounts: Path = MOUNTS) -> str:
    """The kind under which it is mounted, such as `ext4` or `fuse.sshfs`; "" if nobody tells."""
    try:
        found = by_table(mounts.read_text(errors="surrogateescape"))
    except OSError:
        found = by_program(_mount())
    whole = path.resolve()
    over = [(len(point.parts), kind) for point, kind in found if whole.is_relative_to(point)]
    deepest = max((depth for depth, _kind in over), default=0)
    # Of several at one place the last one hides the others.
    return next((kind for depth, kind in reversed(over) if depth == deepest), "")


def is_network(kind: str) -> bool:
    """Whether locks and shared memory, which a journal needs, may fail there."""
    family, _, own = kind.partition(".")
    if family in ("fuse", "macfuse", "osxfuse"):
        return own in NETWORK_FUSE
    return kind.startswith(NETWORK_PREFIXES) or kind in NETWORK


def by_table(text: str) -> list[tuple[Path, str]]:
    """As proc(5) has it: the place is the fifth word, the kind the first after a lone hyphen."""
    found = []
    for line in text.split("\n"):
        before, hyphen, after = line.partition(" - ")
        if hyphen and len(words := before.split(" ")) > 4:
            kind, _, source = after.partition(" ")
            # What mounts an address may call itself `fuse`, as davfs2 does.
            kind = "fuse.davfs" if kind == "fuse" and "://" in source else kind
            found.append((Path(_plain(words[4])), kind))
    return found


def by_program(text: str) -> list[tuple[Path, str]]:
    """As `mount` of macOS writes it: `source on /place (kind, option, ...)`."""
    lines = map(_SAID.fullmatch, text.split("\n"))
    return [(Path(line["point"]), line["kind"]) for line in lines if line]


def _plain(word: str) -> str:
    """White space and backslashes are written as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)


def _mount() -> str:
    try:
        done = subprocess.run(["mount"], capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
