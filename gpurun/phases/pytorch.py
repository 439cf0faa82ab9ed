"""The torch that a recipe pins, in a build that the box's driver runs."""

import shlex

from gpurun.hardware.cuda import Build, build_for
from gpurun.phases.steps import KEEP, Facts

_HAS = """\
import sys, torch
wanted, device = sys.argv[1:]
has = torch.__version__ if "+" in wanted else torch.__version__.partition("+")[0]
sys.exit(has != wanted or (device == "cuda" and torch.version.cuda is None))
"""
_SITE = """\
import pathlib, torch
print(pathlib.Path(torch.__file__).parent.parent)
"""
_CHECK = {
    "cpu": "import torch; print('torch', torch.__version__, torch.__file__)",
    "cuda": """\
import os, sys, torch
print("torch", torch.__version__, "CUDA", torch.version.cuda, torch.__file__)
seen, wanted = torch.cuda.device_count(), int(os.environ.get("GPURUN_GPUS", "1"))
if torch.version.cuda is None:
    sys.exit("this torch is built for the CPU: say `setup.device: cpu`, or leave its version out")
if seen < wanted:
    sys.exit(f"torch sees {seen} GPUs, {wanted} are needed: is its CUDA newer than the driver's?")
for index in range(wanted):
    ones = torch.ones(64, 64, device=f"cuda:{index}")
    assert (ones @ ones).sum().item() == 64**3, f"GPU {index} computes wrongly"
    print(f"GPU {index}:", torch.cuda.get_device_name(index), "computes")
""",
}


def says(version: str, device: str, facts: Facts) -> str:
    build = _build(version, device, facts)
    cuda = f", built for CUDA {build.cuda}" if build.cuda else ""
    return f"torch {version} for {device}{cuda}"


def install_text(version: str, device: str, facts: Facts) -> str:
    """Use the torch that is here or that the base interpreter has; else install the one pinned.

    A virtual environment made from another one does not see its packages, hence the .pth file.
    """
    wanted = shlex.quote(version)
    return f"""\
has() {{ "$1" -c {shlex.quote(_HAS)} {wanted} {device} 2>/dev/null; }}
base=$(cat {KEEP}/python 2>/dev/null || echo python3)
if has venv/bin/python; then :
elif has "$base"; then
  site=$(venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$base" -c {shlex.quote(_SITE)} > "$site/gpurun-host-torch.pth"
  has venv/bin/python
else
  {_install(version, device, facts)}
fi"""


def image_text() -> str:
    """Where no version is pinned, the image's own torch, if it has one."""
    return f"""\
base=$(cat {KEEP}/python 2>/dev/null || echo python3)
if venv/bin/python -c 'import torch' 2>/dev/null; then exit 0; fi
if folder=$("$base" -c {shlex.quote(_SITE)} 2>/dev/null); then
  site=$(venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "$folder" > "$site/gpurun-host-torch.pth"
  echo "torch of the image: $folder"
fi"""


def check_text(device: str) -> str:
    """Every time: a GPU can be lost between two runs of one box."""
    return f"venv/bin/python -c {shlex.quote(_CHECK[device])}"


def _install(version: str, device: str, facts: Facts) -> str:
    default = f"install {shlex.quote(f'torch=={version}')}"
    index = _build(version, device, facts).index
    if not index:
        return default
    there = f"{default} --index-url {shlex.quote(index)}"
    if device == "cuda":
        return there  # the registry's own build is known not to run here
    return f"PIP_RETRIES=0 PIP_TIMEOUT=15 UV_HTTP_TIMEOUT=15 {there} || {default}"


def _build(version: str, device: str, facts: Facts) -> Build:
    if device == "cpu":
        return Build("", facts.torch_cpu_index)
    if facts.hardware is None:
        return Build("", "")
    found = build_for(version, facts.hardware.driver_cuda, facts.hardware.capabilities)
    return found or Build("", "")  # phase accept has refused such a box
