"""Signals, from a process's first moment on: before torch is there, whose import takes seconds.

SIGUSR1, and a fault (SIGSEGV, SIGBUS), show where every thread is.  SIGTERM ends a process at once
as long as no other rank counts on it, and is noted from then on.
"""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType


def show_stacks_when_asked() -> None:
    """On stderr, by a handler that needs no interpreter lock."""
    faulthandler.enable(file=sys.__stderr__)
    faulthandler.register(signal.SIGUSR1, file=sys.__stderr__)


class Sigterm:
    """Whether it came, and what it means now."""

    def __init__(self) -> None:
        self.asked = False
        self.trained = False  # a step: there is something to save
        self._at_once = contextlib.ExitStack()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Undone afterwards: a handler that outlived the run would keep its process group alive."""

        def note(_number: int, _frame: FrameType | None) -> None:
            self.asked = True

        before = signal.signal(signal.SIGTERM, note)
        self._at_once.enter_context(_heard_at_once(self._end))
        try:
            yield
        finally:
            self.hold()
            signal.signal(signal.SIGTERM, before)

    def hold(self) -> None:
        """From now on it is only noted: all ranks end together."""
        self._at_once.close()

    def say_nothing_is_lost(self) -> None:
        # The main thread may be inside a write of sys.stdout's.
        os.write(1, b"SIGTERM before the first step: nothing was trained, nothing is saved\n")

    def _end(self) -> None:
        self.say_nothing_is_lost()
        os._exit(0)


@contextlib.contextmanager
def _heard_at_once(act: Callable[[], None]) -> Iterator[None]:
    """A thread acts on SIGTERM, for the main one may be waiting in C++ for another rank, where no
    handler of Python's runs."""
    heard, told = os.pipe()
    os.set_blocking(told, False)
    before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)

    def listen() -> None:
        while number := os.read(heard, 1):
            if number[0] == signal.SIGTERM:
                act()

    thread = threading.Thread(target=listen, name="sigterm", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(told)
        thread.join()
        os.close(heard)
