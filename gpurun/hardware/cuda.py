"""Drivers, CUDA, and which build of torch runs on them.

Sources: NVIDIA's CUDA compatibility guide (a driver runs every older CUDA, and every minor release
of its own major one), PyTorch's release notes for the builds and for the architectures in them.
"""

import re
from dataclasses import dataclass

INDEX = "https://download.pytorch.org/whl"

# torch release -> the CUDA builds that are published; the first is what the registry gives.
BUILDS = {
    "2.1": ("12.1", "11.8"),
    "2.2": ("12.1", "11.8"),
    "2.3": ("12.1", "11.8"),
    "2.4": ("12.1", "11.8", "12.4"),
    "2.5": ("12.4", "11.8", "12.1"),
    "2.6": ("12.4", "11.8", "12.6"),
    "2.7": ("12.6", "11.8", "12.8"),
    "2.8": ("12.8", "12.6", "12.9"),
    "2.9": ("12.8", "12.6", "13.0"),
    "2.10": ("12.8", "12.6", "13.0"),
    "2.11": ("13.0", "12.6", "12.8"),
    "2.12": ("13.0", "12.6", "12.9", "13.2"),
}
_BLACKWELL, _BLACKWELL_BUILD = (10, 0), (12, 8)
_OLDEST_GPU = (((13, 0), (7, 5)), ((12, 8), (7, 0)))  # builds from .. on have no code below ..

# Driver release -> the newest CUDA it runs, where nvidia-smi does not say.
_DRIVERS = {
    "11.4": 470,
    "11.6": 510,
    "11.8": 520,
    "12.0": 525,
    "12.2": 535,
    "12.4": 550,
    "12.6": 560,
    "12.8": 570,
    "12.9": 575,
    "13.0": 580,
    "13.1": 590,
}


@dataclass(frozen=True, slots=True)
class Build:
    """A build of torch: its CUDA release, and the index it lies on ("" = the box's own)."""

    cuda: str
    index: str


def cuda_of_driver(driver: str) -> str:
    """The newest CUDA that a driver release surely runs; empty where it is not known."""
    major = int(found[0]) if (found := re.match(r"\d{3}(?=\.)", driver)) else 0
    return next((cuda for cuda, since in reversed(_DRIVERS.items()) if major >= since), "")


def build_for(torch: str, driver_cuda: str, capabilities: tuple[str, ...]) -> Build | None:
    """The build of this torch for this driver and these GPUs; None when no published one runs.

    The registry's own build wherever it runs, else the newest that the driver knows.  Of a torch
    that is not in the table, and on a box whose driver says nothing, the registry's own.
    """
    release, _, local = torch.partition("+")
    if named := re.fullmatch(r"cu(\d\d)(\d)", local):  # the recipe has chosen
        return Build(f"{named[1]}.{named[2]}", f"{INDEX}/{local}")
    builds = BUILDS.get(".".join(release.split(".")[:2]), ())
    if not builds or not driver_cuda:
        return Build("", "")
    fit = [build for build in builds if _runs(build, driver_cuda, capabilities)]
    if not fit:
        return None
    if fit[0] == builds[0]:
        return Build(fit[0], "")
    known = [build for build in fit if _pair(build) <= _pair(driver_cuda)]
    best = max(known, key=_pair) if known else min(fit, key=_pair)
    return Build(best, f"{INDEX}/cu{best.replace('.', '')}")


def torch_misfit(torch: str, driver_cuda: str, capabilities: tuple[str, ...]) -> str:
    """Why no build of this torch runs here, in words; empty when one does."""
    if build_for(torch, driver_cuda, capabilities) is not None:
        return ""
    builds = BUILDS[".".join(torch.split(".")[:2])]
    of_gpu = f" on compute capability {', '.join(capabilities)}" if capabilities else ""
    return (
        f"its driver runs CUDA {driver_cuda}, and torch {torch} is built for CUDA "
        f"{', '.join(sorted(builds, key=_pair))}: none of them runs there{of_gpu}"
    )


def _runs(build: str, driver_cuda: str, capabilities: tuple[str, ...]) -> bool:
    if _pair(build)[0] > _pair(driver_cuda)[0]:
        return False
    oldest = next((gpu for since, gpu in _OLDEST_GPU if _pair(build) >= since), (0, 0))
    for capability in map(_pair, capabilities):
        if capability < oldest:
            return False
        if capability >= _BLACKWELL and _pair(build) < _BLACKWELL_BUILD:
            return False
    return True


def _pair(version: str) -> tuple[int, int]:
    major, _, minor = version.partition(".")
    return int(major), int(minor or 0)
