"""What made a checkpoint: digests of code and data, the commit, the versions."""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

GIT_S = 10
SOURCES = ("*.py", "*.cpp", "*.h")
ORIGIN = "origin.json"  # beside this module on a box, which has no repository


def provenance(data: str, files: dict[str, Any], optimizer: str) -> dict[str, Any]:
    """`data` is the fingerprint of the datasets, `files` what they consist of."""
    return {
        "code_sha256": code_digest(Path(__file__).parent),
        "data_sha256": data,
        "data_files": files,
        "optimizer": optimizer,
        "git": git_state(Path(__file__).parent, os.environ),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
    }


def code_digest(package: Path) -> str:
    """sha256 over the names and contents of this package's modules and C++ sources."""
    total = hashlib.sha256()
    sources = (path for kind in SOURCES for path in package.rglob(kind))
    for path in sorted(sources):
        name, content = str(path.relative_to(package)).encode(), path.read_bytes()
        total.update(b"%d %d " % (len(name), len(content)) + name + content)
    return total.hexdigest()


def git_state(directory: Path, environ: dict[str, str] | os._Environ) -> dict[str, Any]:
    """{"commit", "dirty"}: as the environment or the sender of this code names them, else of the
    checkout."""
    if commit := environ.get("GPURUN_GIT_COMMIT"):
        return {"commit": commit, "dirty": environ.get("GPURUN_GIT_DIRTY", "") in ("1", "true")}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        sent = json.loads((directory / ORIGIN).read_text())
        return {"commit": sent["commit"], "dirty": sent["dirty"]}
    commit = _git(directory, "rev-parse", "HEAD")
    if not commit:
        return {"commit": None, "dirty": None}
    return {"commit": commit, "dirty": bool(_git(directory, "status", "--porcelain", "."))}


def _git(directory: Path, *words: str) -> str | None:
    try:
        command = ["git", "-C", str(directory), *words]
        result = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
