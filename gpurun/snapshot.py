"""The cargo as it was when its run was planned: whatever is edited meanwhile, that is what travels.

FOLDER/files/<sha256>   contents, each once
FOLDER/cargo.json       names, modes and links; written last
"""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

from gpurun.bundle import Cargo, Item
from gpurun.errors import UsageError


def keep(cargo: Cargo, folder: Path) -> None:
    """Copy it; UsageError when a file has changed since it was read."""
    shutil.rmtree(folder, ignore_errors=True)
    files = folder / "files"
    try:
        files.mkdir(parents=True, mode=0o700)
        for item in cargo.files:
            if not item.link and not (files / item.sha256).exists():
                with item.opened() as source, (files / item.sha256).open("wb") as copy:
                    shutil.copyfileobj(source, copy)
        rows = [asdict(item) | {"path": ""} for item in cargo.files]
        part = folder / "cargo.json.part"
        part.write_text(json.dumps(rows))
        part.rename(folder / "cargo.json")
    except OSError as error:
        raise UsageError(
            f"{folder}: what is shipped cannot be kept there ({error}): nothing was rented"
        ) from error


def kept(folder: Path) -> Cargo | None:
    """What `keep` wrote; None if it never finished."""
    try:
        rows = json.loads((folder / "cargo.json").read_text())
    except (OSError, ValueError):
        return None
    items = [Item(**row) for row in rows]
    return Cargo(tuple(replace(item, path=folder / "files" / item.sha256) for item in items))


def forget(folder: Path) -> None:
    """The run is over."""
    shutil.rmtree(folder, ignore_errors=True)
