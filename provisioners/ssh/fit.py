"""Whether a host can be what is needed, by what it says before anything is claimed there.

A closer look (NVLink, memory, driver, ...) is the run's own, once it has the host.
"""

import re
from collections.abc import Iterator, Sequence

from gpurun.model import Need
from provisioners.ssh.survey import Survey


def misfits(seen: Survey, need: Need, gpu: str | None, gpu_count: int | None) -> list[str]:
    """Why the host cannot serve this need, each in a sentence; `gpu` and `gpu_count` are what its
    owner says of it.
    """
    found = list(_gpus(seen, need, gpu, gpu_count)) if need.gpu is not None else []
    if seen.unwritable:
        found.append(
            f"its user can neither write {seen.unwritable} nor use sudo: name another folder, with "
            "`workspace` in ssh_hosts of the settings"
        )
    if seen.disk_gb < need.disk_gb:
        found.append(f"{seen.disk_gb} GB of disk are free, need.disk_gb is {need.disk_gb}")
    return found


def _gpus(seen: Survey, need: Need, gpu: str | None, gpu_count: int | None) -> Iterator[str]:
    assert need.gpu is not None
    if not seen.has_smi:
        yield "it has no NVIDIA driver: nvidia-smi is not there"
        return
    if seen.trouble:
        said = " ".join(dict.fromkeys(seen.trouble))
        yield f"nvidia-smi shows {len(seen.gpus)} GPUs and says: {said}"
        return
    if len(seen.gpus) < need.gpu_count:
        yield f"it has {len(seen.gpus)} GPUs, need.gpu_count is {need.gpu_count}"
    if gpu_count is not None and len(seen.gpus) < gpu_count:
        yield f"it has {len(seen.gpus)} GPUs, ssh_hosts says {gpu_count}"
    fit = [name for name in seen.gpus if _may_be(need.gpu, gpu or name)]
    if len(fit) < min(need.gpu_count, len(seen.gpus)):
        has = ", ".join(_counted(seen.gpus))
        only = f"only {len(fit)} of its GPUs fit: " if fit else ""
        yield f"{only}it has {has}, need.gpu is {need.gpu}"


def _may_be(wanted: str, name: str) -> bool:
    """`H100 SXM` may be any H100: not every name tells its form."""
    words = re.findall(r"[a-z0-9]+", wanted.lower())
    telling = [word for word in words if re.search(r"\d", word)] or words
    return all(word in name.lower() for word in telling)


def _counted(names: Sequence[str]) -> list[str]:
    return [f"{names.count(name)}x {name}" for name in dict.fromkeys(names)]
