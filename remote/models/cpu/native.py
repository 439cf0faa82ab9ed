"""C++ that is compiled on the spot, for the CPU that it will run on; or PyTorch.

Compiled at each start, in seconds, so no cache can be of another machine; compared with PyTorch's
before it is used.
"""

import ctypes
import logging
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

log = logging.getLogger(__name__)
Made = TypeVar("Made")
COMPILERS = ("g++", "clang++")
FLAGS = ("-std=c++17", "-O2", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC", "-pthread")
COMPILE_LIMIT_S = 300
ROUNDING = 1e-5


def library(name: str, compiler: str, **constants: int) -> ctypes.CDLL:
    """Of the source of that name beside this file.

    Raises OSError or subprocess.SubprocessError where it cannot be made.
    """
    source = Path(__file__).with_name(f"{name}.cpp")
    defined = [f"-D{constant}={value}" for constant, value in constants.items()]
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, f"{name}.so")
        subprocess.run(
            [compiler, *FLAGS, *defined, str(source), "-o", str(made)],
            check=True,
            capture_output=True,
            timeout=COMPILE_LIMIT_S,
        )
        return ctypes.CDLL(str(made))  # stays loaded when the file is gone


def proven(
    name: str,
    make: Callable[[str], Made],
    difference: Callable[[Made], float],
    environ: Mapping[str, str],
    which: Callable[[str], str | None],
) -> Made | None:
    """What `make` makes with the compiler at hand, if it differs from PyTorch's by rounding alone.

    None, and a word on why in the log, where PyTorch's is to be used.
    """
    if "DISABLE_COMPILE" in environ:
        return None
    compiler = next(filter(which, filter(None, (environ.get("CXX"), *COMPILERS))), None)
    if compiler is None:
        log.info("%s: PyTorch's; a C++ compiler would make it faster: apt-get install g++", name)
        return None
    try:
        made = make(compiler)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("%s: PyTorch's, for %s did not make ours: %s", name, compiler, error)
        return None
    if not (off := difference(made)) <= ROUNDING:  # which a NaN is not either
        log.warning("%s: PyTorch's, for ours is off by %.1e here", name, off)
        return None
    return made
