"""Where the key of Vast comes from: what works with the official client works here.

An empty VAST_API_KEY counts as none; the client's session key of an account with two factors is not
read, because it expires in the middle of runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

URL = "https://console.vast.ai"


@dataclass(frozen=True, slots=True)
class Access:
    """`source` says in words where the key was found."""

    api_key: str = field(repr=False)
    source: str
    url: str = URL


def find(configured: str, environ: Mapping[str, str], home: Path) -> Access | None:
    """The key of the settings, else VAST_API_KEY, else the official client's; None without one."""
    config = environ.get("XDG_CONFIG_HOME", "").strip()
    folder = Path(config) if config else home / ".config"
    client, legacy = folder / "vastai" / "vast_api_key", home / ".vast_api_key"
    sources = (
        ("the settings", configured),
        ("VAST_API_KEY", environ.get("VAST_API_KEY", "")),
        (str(client), _text(client)),
        (str(legacy), _text(legacy)),
    )
    for source, key in sources:
        if key.strip():
            url = environ.get("VAST_URL", "").strip() or URL
            return Access(key.strip(), source, url.rstrip("/").removesuffix("/api/v0"))
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
