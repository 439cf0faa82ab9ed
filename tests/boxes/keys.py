"""SSH keys, with and without a passphrase, and an agent that holds them."""

import subprocess
from pathlib import Path


def make(path: Path, passphrase: str = "") -> Path:
    """A new ed25519 key at `path`, its public part beside it."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-C", "test", "-N", passphrase, "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return path


def public_line(path: Path) -> str:
    """The public line of a private key's file, without its comment."""
    return " ".join(Path(f"{path}.pub").read_text().split()[:2])
