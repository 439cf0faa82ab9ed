"""Builds the stand-in as the real package builds: with nvcc, for the torch that it can import."""

import os
import subprocess

from setuptools import setup
from setuptools.dist import Distribution

try:
    if os.environ.get("ISOLATED"):
        raise ImportError("there is no torch in an isolated build")
    import torch

    assert torch.version.cuda
    subprocess.run(["nvcc", "--version"], check=True, stdout=subprocess.DEVNULL)
    if os.environ.get("NO_COMPILE"):
        raise RuntimeError("Error compiling objects for extension")
    Distribution.has_ext_modules = lambda self: True
    modules = ["adam_atan2", "adam_atan2_backend"]
except ImportError:  # as with build isolation: a wheel without its CUDA part
    modules = ["adam_atan2"]
setup(name="adam-atan2", version="0.0.3", py_modules=modules)
