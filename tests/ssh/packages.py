"""What is installed for the tests, as a box's own python3: like an image made for training."""

import sys
from pathlib import Path

from tests.boxes import Box


def packages() -> tuple[Path, ...]:
    """For `Shape.share`: the environment of the tests, and the interpreter that it was made of."""
    return tuple({Path(sys.prefix): 0, Path(sys.base_prefix): 0})


def use_packages(machine: Box) -> None:
    machine.install("python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
