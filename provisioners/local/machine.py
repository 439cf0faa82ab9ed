"""What this machine is, what it can offer, and which part of our environment a box may see."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

from gpurun.model import Need, Offer
from gpurun.provider import Traits

TRAITS = Traits(
    settle_window_s=10,
    proof_gap_s=1,
    tail_s=0,
    fuse_ends_bill=True,
    if_lost="so does the box; nothing bills on.",
)

MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))

# What installers need to reach their index, and programs the GPUs.
_PASSED = re.compile(
    r"(PIP|UV|SSL_CERT|CUDA|NVIDIA|NCCL)_.*|(https?|ftp|all|no)_proxy|REQUESTS_CA_BUNDLE"
    r"|CURL_CA_BUNDLE|LD_LIBRARY_PATH|USER|LOGNAME|TZ",
    re.IGNORECASE,
)
_SECRET = re.compile(r"WANDB_.*|.*(KEY|TOKEN|SECRET|PASSWORD|PASSWD)", re.IGNORECASE)
# A socket's path has at most 108 bytes, and multiprocessing appends 32 to the directory's.
_LONGEST_TMPDIR = 75


def identity() -> str:
    """Machine and user: what two journals on one machine have in common."""
    texts = (path.read_text().strip() for path in MACHINE_IDS if path.exists())
    machine_id = next(filter(None, texts), None) or os.uname().nodename
    return hashlib.sha256(f"{machine_id}:{os.getuid()}".encode()).hexdigest()[:16]


def offer(need: Need, state_dir: Path, usd_per_hour: Decimal) -> Offer | None:
    """This machine, if it has what is needed."""
    gpus = _gpus()
    fitting = [gpu for gpu in gpus if need.gpu is None or _is(need.gpu, gpu)]
    free_gb = shutil.disk_usage(_existing(state_dir)).free // 10**9
    if (need.gpu and len(fitting) < need.gpu_count) or free_gb < need.disk_gb:
        return None
    return Offer(
        provider="local",
        id="this-machine",
        gpu=need.gpu or (gpus[0] if gpus else None),
        gpu_count=len(fitting),
        usd_per_hour=usd_per_hour,
        disk_gb=free_gb,
        place=os.uname().nodename,
        cpu_count=os.cpu_count() or 1,
        memory_gb=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 10**9,
    )


def environment(root: Path, label: str, ours: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a box's commands: no secret of ours is in it."""
    passed = {
        name: value
        for name, value in ours.items()
        if _PASSED.fullmatch(name) and not _SECRET.fullmatch(name)
    }
    tmp = root / "tmp"
    return (
        _pip(ours)
        | passed
        | {
            "PATH": f"{root}/venv/bin:{root}/.gpurun/bin:{ours.get('PATH', os.defpath)}",
            "HOME": f"{root}/home",
            "TMPDIR": str(tmp) if len(str(tmp)) <= _LONGEST_TMPDIR else tempfile.gettempdir(),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PYTHONUNBUFFERED": "1",
            "GPURUN_LABEL": label,
            "GPURUN_ROOT": str(root),
        }
    )


def _pip(ours: Mapping[str, str]) -> dict[str, str]:
    """The user's own cache and index: HOME is another one in the box."""
    home = Path(ours.get("HOME") or Path.home())
    cache = Path(ours.get("XDG_CACHE_HOME") or home / ".cache")
    config = Path(ours.get("XDG_CONFIG_HOME") or home / ".config")
    found = {"PIP_CACHE_DIR": str(cache / "pip"), "UV_CACHE_DIR": str(cache / "uv")}
    for file in (config / "pip" / "pip.conf", home / ".pip" / "pip.conf"):
        if file.exists():
            found["PIP_CONFIG_FILE"] = str(file)
            break
    return found


def _gpus() -> list[str]:
    """The models of this machine's GPUs, as nvidia-smi calls them."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip().removeprefix("NVIDIA ") for line in answer.stdout.splitlines() if line]


def _is(wanted: str, model: str) -> bool:
    """Whether a model is the one wanted: "H100" is "H100 80GB HBM3", "L4" is not "L40S"."""
    words = f" {' '.join(re.findall('[a-z0-9]+', model.casefold()))} "
    return f" {' '.join(re.findall('[a-z0-9]+', wanted.casefold()))} " in words


def _existing(directory: Path) -> Path:
    return directory if directory.exists() else _existing(directory.parent)
