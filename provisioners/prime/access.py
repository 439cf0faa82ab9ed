"""Where the key of Prime Intellect comes from, and which API, team and SSH key go with it.

The official client's file is read too: what works with `prime` works here.  It writes that file
readable by all; it is read all the same, and `gpurun doctor` says so.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

URL = "https://api.primeintellect.ai"
CLIENT_FILE = Path(".prime") / "config.json"


@dataclass(frozen=True, slots=True)
class Access:
    """`source` says in words where the key was found; `key_file` is a private SSH key.

    `box_key` is another API key, which the user has made for the box (boxkey.py).
    """

    api_key: str = field(repr=False)
    source: str
    url: str = URL
    team_id: str | None = None
    key_file: Path | None = None
    box_key: str = field(default="", repr=False)


def find(
    configured: str, environ: Mapping[str, str], home: Path, box_key: str = ""
) -> Access | None:
    """The key of the settings, else PRIME_API_KEY, else the official client's; None without one."""
    client = _client(home)
    sources = (
        ("the settings", configured),
        ("PRIME_API_KEY", environ.get("PRIME_API_KEY", "")),
        (f"~/{CLIENT_FILE}", _text(client, "api_key")),
    )
    key, source = next(((key.strip(), where) for where, key in sources if key.strip()), ("", ""))
    if not key:
        return None
    url = (
        environ.get("PRIME_API_BASE_URL")
        or environ.get("PRIME_BASE_URL")
        or _text(client, "base_url")
        or URL
    )
    key_file = environ.get("PRIME_SSH_KEY_PATH") or _text(client, "ssh_key_path")
    path = Path(key_file.replace("~", str(home), 1) if key_file.startswith("~") else key_file)
    return Access(
        api_key=key,
        source=source,
        url=url.rstrip("/").removesuffix("/api/v1").rstrip("/"),
        team_id=environ.get("PRIME_TEAM_ID") or _text(client, "team_id") or None,
        # The client writes its default path there whether that key exists or not.
        key_file=path if key_file and path.is_file() else None,
        box_key=box_key.strip(),
    )


def same_key(one: str, other: str) -> bool:
    """By type and key; comments differ."""
    return one.split()[:2] == other.split()[:2]


def _client(home: Path) -> Mapping[str, Any]:
    try:
        found = json.loads((home / CLIENT_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(client: Mapping[str, Any], name: str) -> str:
    value = client.get(name)
    return value if isinstance(value, str) else ""
