"""Files that appear whole or not at all: the box can vanish any second."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A path beside this one, to be written; on success that file takes its place, and stays
    there also if the power fails.  OSError: this one is what it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".tmp")
    try:
        yield partial
        sync(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_json(path: Path, content: Any) -> None:
    with appearing(path) as partial:
        partial.write_text(json.dumps(content, indent=1))


def sync(path: Path) -> None:
    """Of a file its content, of a directory its names: to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
