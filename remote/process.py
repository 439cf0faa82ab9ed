"""How a process of a run ends."""

import atexit
import contextlib
import os
import sys
from collections.abc import Callable
from typing import NoReturn


def end_with(main: Callable[[], int]) -> NoReturn:
    """The status is what `main` returns, 1 if it raises.

    The interpreter is not taken down: threads of PyTorch's that still want its lock would wait for
    ever, and a box that hangs at the end of a run costs as much as one that trains.
    """
    status = 1

    def end() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                stream.flush()
        os._exit(status)

    atexit.register(end)  # the first that is registered runs last
    status = main()
    sys.exit(status)
