"""How package clients of this machine reach their registries, for boxes that use them too.

Nothing of it is written down here: it is read from the running machine's own configuration.
"""

import os
import re
import subprocess
from pathlib import Path

VARIABLES = re.compile(
    r"(PIP|UV)_\w+|SSL_CERT_(FILE|DIR)|\w+_CA_BUNDLE|(https?|no|all)_proxy", re.IGNORECASE
)
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def environment() -> dict[str, str]:
    """The variables that pip, uv, curl and Python's TLS read."""
    return {name: value for name, value in os.environ.items() if VARIABLES.fullmatch(name)}


def files() -> dict[str, str]:
    """Configuration files, by the path in the box at which every user's clients find them."""
    home = Path.home()
    found = {"/etc/resolv.conf": _text(Path("/etc/resolv.conf"))}
    for path, places in {
        "/etc/pip.conf": [Path("/etc/pip.conf")],
        "/etc/xdg/pip/pip.conf": [home / ".config/pip/pip.conf", home / ".pip/pip.conf"],
        "/etc/uv/uv.toml": [home / ".config/uv/uv.toml", Path("/etc/uv/uv.toml")],
        str(CERTIFICATES): [CERTIFICATES],
    }.items():
        found[path] = next((text for place in places if (text := _text(place))), "")
    found["/etc/apt/apt.conf.d/02this-network"] = _apt()
    return {path: text for path, text in found.items() if text}


def folders() -> list[Path]:
    """Package folders on this machine's disk that the configuration names."""
    texts = [*environment().values(), *(text for path, text in files().items() if "pip" in path)]
    named = {Path(path) for text in texts for path in re.findall(r"(?<![\w:/])/[^\s,:]+", text)}
    named |= {Path(path) for text in texts for path in re.findall(r"file://(/[^\s,]+)", text)}
    indexes = {path.parent for path in named if path.name == "simple"}  # its links go up
    outside = {path for path in named - indexes if not path.is_relative_to("/etc")}
    return sorted(path for path in indexes | outside if path.is_dir())


def _apt() -> str:
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True).stdout
    kept = re.compile(r'Acquire::(https?|Check-[\w-]+)(::[\w-]+)* ".+"')
    return "".join(f"{line}\n" for line in dump.splitlines() if kept.match(line))


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""
