"""SSH keys, with and without a passphrase, and an agent that holds them."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


def make_key(path: Path, passphrase: str = "") -> Path:
    """A new ed25519 key at `path`, its public part beside it as `path`.pub."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-C", "test", "-N", passphrase, "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return path


def public_line(path: Path) -> str:
    """Type and text of the public key that belongs to the private key at `path`."""
    return " ".join(Path(f"{path}.pub").read_text().split()[:2])


@dataclass(frozen=True, slots=True)
class Agent:
    """A running ssh-agent."""

    socket: Path

    @property
    def environment(self) -> dict[str, str]:
        """What makes a client use it."""
        return {"SSH_AUTH_SOCK": str(self.socket)}

    def add(self, key: Path, passphrase: str = "") -> None:
        """Load a private key.  The passphrase goes by a program that prints it, as ssh asks."""
        ask = self.socket.with_name("askpass")
        ask.write_text('#!/bin/sh\nprintf "%s\\n" "$PASSPHRASE"\n')
        ask.chmod(0o700)
        asking = {"SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force", "PASSPHRASE": passphrase}
        subprocess.run(
            ["ssh-add", "-q", str(key)],
            env=os.environ | self.environment | asking,
            stdin=subprocess.DEVNULL,
            check=True,
            timeout=10,
        )


@contextmanager
def ssh_agent(folder: Path) -> Iterator[Agent]:
    """An agent of its own, with no keys; `folder` is where its socket lies (keep it short)."""
    socket = folder / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    try:
        for _ in range(500):
            if socket.exists():
                break
            assert process.poll() is None, f"ssh-agent did not start at {socket}"
            time.sleep(0.01)
        yield Agent(socket)
    finally:
        process.terminate()
        process.wait()
