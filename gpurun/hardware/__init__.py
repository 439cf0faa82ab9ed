"""A box as it is: read in one round trip, and held against what was ordered.

script.py   what is asked of a box, as POSIX sh
read.py     what it answers
models.py   the words for GPUs: `H100 SXM`, `A100 80GB`, and what nvidia-smi prints
cuda.py     drivers, CUDA and the torch builds that run on them
fit.py      whether it is what was ordered, a sentence for each thing that is not
"""

from gpurun.hardware.fit import Check, checks, misfits, shm_needed_gb
from gpurun.hardware.models import is_the
from gpurun.hardware.read import Gpu, Hardware, read
from gpurun.hardware.script import PATH_BEHIND, READ_S, SCRIPT, python_script

__all__ = [
    "PATH_BEHIND",
    "READ_S",
    "SCRIPT",
    "Check",
    "Gpu",
    "Hardware",
    "checks",
    "is_the",
    "misfits",
    "python_script",
    "read",
    "shm_needed_gb",
]
