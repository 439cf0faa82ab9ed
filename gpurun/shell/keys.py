"""The private key of a login: read from its file, or found in the agent."""

import base64
import os
import stat
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm

from gpurun.shell.trouble import LoginRefused, Why

OPENSSH_HEAD = b"-----BEGIN OPENSSH PRIVATE KEY-----"
OPENSSH_MAGIC = b"openssh-key-v1\0"


def private_key(path: Path) -> paramiko.PKey:
    """A key to log in with.  One with a passphrase is used through the agent that holds it.

    LoginRefused says what is wrong with the file, and what to run.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise LoginRefused(
            Why.KEY_MISSING,
            f"the private key {path} does not exist: name another, or make it with "
            f"`ssh-keygen -t ed25519 -f {path}`",
        ) from error
    except OSError as error:
        raise LoginRefused(
            Why.KEY_UNREADABLE,
            f"the private key {path} cannot be read ({error.strerror}): see `ls -l {path}`",
        ) from error
    _check_mode(path)
    try:
        return paramiko.PKey.from_path(str(path))
    except (TypeError, paramiko.PasswordRequiredException):  # cryptography's word for a passphrase
        return _from_agent(path, text)
    except (ValueError, UnsupportedAlgorithm, paramiko.SSHException, UnicodeError) as error:
        raise LoginRefused(
            Why.KEY_UNREADABLE,
            f"{path} holds no private key that can be read ({error}): check it with "
            f"`ssh-keygen -y -f {path}`",
        ) from error


def _check_mode(path: Path) -> None:
    """As OpenSSH does, which works on the same key: it would refuse."""
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid == os.geteuid() and mode & 0o077:
        raise LoginRefused(
            Why.KEY_EXPOSED,
            f"the private key {path} can be read by others (mode {mode:o}): run `chmod 600 {path}`",
        )


def _from_agent(path: Path, text: bytes) -> paramiko.PKey:
    wanted = _public_part(path, text)
    for key in paramiko.Agent().get_keys():
        if key.asbytes() == wanted:
            return key
    raise LoginRefused(
        Why.KEY_LOCKED,
        f"the private key {path} is protected by a passphrase and no agent holds it: "
        f"run `ssh-add {path}`",
    )


def _public_part(path: Path, text: bytes) -> bytes | None:
    """The public key as SSH sends it: OpenSSH's own format has it in clear, PEM beside it."""
    try:
        if text.startswith(OPENSSH_HEAD):
            sealed = text.removeprefix(OPENSSH_HEAD).partition(b"-----")[0]
            message = paramiko.Message(base64.b64decode(sealed).removeprefix(OPENSSH_MAGIC))
            for _ in ("cipher", "key derivation", "its options"):
                message.get_binary()
            message.get_int()  # how many keys: one, always
            return bytes(message.get_binary())
        line = path.with_name(f"{path.name}.pub").read_text()
        return base64.b64decode(line.split()[1])
    except (ValueError, IndexError, OSError):
        return None
