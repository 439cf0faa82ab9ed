"""Host keys of boxes, pinned at first contact: one file for each name.

The files are OpenSSH's: `ssh -o UserKnownHostsFile=<file> -o HostKeyAlias=<name>` reads the same.
"""

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

import paramiko

from gpurun.shell.trouble import HostKeyChanged

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Pins:
    """The pinned keys of one name; for paramiko a policy about keys it does not know."""

    def __init__(self, folder: Path, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot name a file of host keys")
        self._name = name
        self.file = folder / name

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        """Paramiko's name for it."""
        self.judge(key)

    def judge(self, key: paramiko.PKey) -> None:
        """Pin the first key ever seen; HostKeyChanged for any other."""
        if not self.file.exists():
            self._pin(key)
        pinned = paramiko.HostKeys(str(self.file)).lookup(self._name) or {}
        if key in pinned.values():
            return
        before = ", ".join(f"{k.get_name()} {k.fingerprint}" for k in pinned.values())
        raise HostKeyChanged(
            f"the host key of {self._name} changed: it was {before or 'unreadable'}, now it is "
            f"{key.get_name()} {key.fingerprint}. Another machine answers at its address, or "
            "somebody stands in between; nothing was sent to it. If you know why it changed, "
            f"run `rm {self.file}` and try again."
        )

    def _pin(self, key: paramiko.PKey) -> None:
        """Whole or not at all, and once: of two processes the second finds the first one's pin."""
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, part = tempfile.mkstemp(prefix=f".{self._name}.", dir=self.file.parent)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{self._name} {key.get_name()} {key.get_base64()}\n")
            with suppress(FileExistsError):
                os.link(part, self.file)
        finally:
            Path(part).unlink()
