"""A Debian of little more than sshd and python3, made once and kept for the user's later tests."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

RELEASE = "bookworm"
# What an image for rent has at the least.  No pip, venv, git, curl, rsync or tmux.
PACKAGES = ("ca-certificates", "openssh-server", "procps", "python3", "sudo")


def root() -> Path:
    """The root directory; making it takes about 20 s and 250 MB, the first time."""
    if shutil.which("mmdebstrap") is None:
        raise RuntimeError("a box from nothing needs: apt-get install mmdebstrap")
    name = hashlib.sha256(f"{RELEASE} {PACKAGES}".encode()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"gpurun-tests-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise RuntimeError(f"{folder} belongs to somebody else: remove it")
    made = folder / f"minbase-{name}"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _make(folder / f"minbase-{name}.part", made)
    return made


def _make(part: Path, made: Path) -> None:
    shutil.rmtree(part, ignore_errors=True)
    done = subprocess.run(
        [
            *("mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}"),
            *(RELEASE, str(part)),
        ],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"mmdebstrap could not make a Debian root: {done.stderr[-2000:]}")
    part.rename(made)
