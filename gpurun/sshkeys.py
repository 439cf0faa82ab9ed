"""The SSH keys of this machine that a cloud is asked to let in."""

from pathlib import Path


def public_keys(key_file: Path | None, home: Path) -> tuple[str, ...]:
    """As OpenSSH writes them: of that one private key, else all in ~/.ssh."""
    if key_file is not None:
        paths = [key_file.with_name(f"{key_file.name}.pub")]
    else:
        paths = sorted((home / ".ssh").glob("*.pub"))
    found = []
    for path in paths:
        try:
            found.append(path.read_text().strip())
        except (OSError, UnicodeDecodeError):
            continue
    return tuple(key for key in found if len(key.split()) >= 2)
