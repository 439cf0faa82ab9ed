"""The phases of a run: what is done on the box, as data.

The engine performs the steps, `up --dry-run` prints them, the tests compare them.  Nothing here
touches a box, the journal or the clock.

    steps.py      the kinds of step, and what they depend on beside the recipe
    order.py      the phases in their order, and the steps of all but the two below
    setup.py      apt, a virtual environment, pip or uv
    pytorch.py    a torch that the driver runs
    optimiser.py  AdamATan2: its CUDA extension if it works, else in PyTorch; never Adam
    data.py       files fetched by the box
"""

from gpurun.phases.optimiser import OPTIMISER_FILE
from gpurun.phases.order import ORDER, PHASES, environment
from gpurun.phases.steps import (
    ENV_FILE,
    KEEP,
    PROBE_S,
    Command,
    Detached,
    Facts,
    Files,
    KeepWheel,
    ReuseWheel,
    Step,
    Upload,
)

__all__ = [
    "ENV_FILE",
    "KEEP",
    "OPTIMISER_FILE",
    "ORDER",
    "PHASES",
    "PROBE_S",
    "Command",
    "Detached",
    "Facts",
    "Files",
    "KeepWheel",
    "ReuseWheel",
    "Step",
    "Upload",
    "environment",
]
