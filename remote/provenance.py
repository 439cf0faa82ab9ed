"""What made a checkpoint: digests of code and data, the commit, the versions."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

GIT_S = 10


def provenance(data: str, optimizer: str) -> dict[str, Any]:
    """`data` is the fingerprint of the datasets."""
    return {
        "code_sha256": code_digest(Path(__file__).parent),
        "data_sha256": data,
        "optimizer": optimizer,
        "git": git_state(Path(__file__).parent, os.environ),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
    }


def code_digest(package: Path) -> str:
    """sha256 over the names and contents of this package's modules."""
    total = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name, content = str(path.relative_to(package)).encode(), path.read_bytes()
        total.update(b"%d %d " % (len(name), len(content)) + name + content)
    return total.hexdigest()


def git_state(directory: Path, environ: dict[str, str] | os._Environ) -> dict[str, Any]:
    """{"commit", "dirty"}: of the checkout, or as the sender of this code names them."""
    if commit := environ.get("GPURUN_GIT_COMMIT"):
        return {"commit": commit, "dirty": environ.get("GPURUN_GIT_DIRTY", "") in ("1", "true")}
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
