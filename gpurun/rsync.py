"""Large files to a box by rsync, where both sides have it: of one that changed, what differs.

Everything else goes as one archive through the kept connection (ship.py), which is faster for many
small files and needs nothing on the box.  rsync brings OpenSSH, which reads the same pinned host
key as we do.
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpurun.bundle import Item
from gpurun.provider import Login

LARGE_BYTES = 1_000_000
SILENT_S = 60  # without a byte, and rsync gives up
PARTIAL = ".gpurun/partial"  # on the box: what a broken transfer has left, taken up by the next


class RsyncFailed(Exception):
    """Its last line; nothing on the box is half written under its name."""


@dataclass(frozen=True, slots=True)
class Rsync:
    """The way to one box."""

    login: Login
    known_hosts: Path  # the folder of pinned keys

    @staticmethod
    def is_here() -> bool:
        return shutil.which("rsync") is not None and shutil.which("ssh") is not None

    def send(self, items: Sequence[Item]) -> int:
        """Bytes that travelled; by the first address that answers."""
        with tempfile.TemporaryDirectory() as folder:
            staged = Path(folder)
            for item in items:
                place = staged / item.name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(item.path.resolve())
            error = RsyncFailed("the box has no address")
            for host, port in self.login.addresses:
                try:
                    return self._send(staged, [item.name for item in items], host, port)
                except RsyncFailed as failed:
                    error = failed
            raise error

    def _send(self, staged: Path, names: Sequence[str], host: str, port: int) -> int:
        words = [
            *("rsync", "--copy-links", "--executability", "--compress", "--checksum"),
            *(f"--partial-dir={PARTIAL}", "--protect-args", f"--timeout={SILENT_S}", "--stats"),
            *("--files-from=-", "--from0", "-e", shlex.join(self._ssh(port))),
            *(f"{staged}/", f"{self.login.user}@{host}:{self.login.root}/"),
        ]
        done = subprocess.run(
            words,
            input=b"\0".join(map(os.fsencode, names)),
            capture_output=True,
            env={**os.environ, "LC_ALL": "C"},
        )
        said = done.stdout.decode(errors="replace")
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise RsyncFailed(lines[-1] if lines else f"rsync exited {done.returncode}")
        sent = re.search(r"Total bytes sent: ([\d,]+)", said)
        return int(sent[1].replace(",", "")) if sent else 0

    def _ssh(self, port: int) -> list[str]:
        """As we log in ourselves: the pinned key, no questions, nothing of the user's own files."""
        login = self.login
        options = {
            "UserKnownHostsFile": f'"{self.known_hosts / login.name}"',
            "HostKeyAlias": login.name,
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
            "ConnectTimeout": "10",
            "Port": str(port),
        }
        if login.key is not None:
            options |= {"IdentityFile": f'"{login.key}"', "IdentitiesOnly": "yes"}
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return ["ssh", "-F", "none", *words]
