"""How a driver is told that its run is ending, and when it must not be told (R5-R7)."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TOLD = signal.SIGUSR1  # sent by whoever set `ending`
HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, TOLD)


class Told(BaseException):
    """The run is ending: unwind to the driver's loop.

    Derives from BaseException so that nothing on the way takes it for a failed step.
    """


def listen() -> None:
    """In a driver: TOLD unwinds whatever is waiting; a terminal that closes does not matter."""
    signal.signal(TOLD, _raise)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def stop_listening() -> None:
    """From here on the driver only ends the run: nothing needs to be told any more."""
    signal.signal(TOLD, signal.SIG_IGN)


@contextmanager
def held() -> Iterator[None]:
    """No signal is delivered inside: between a request to rent and its record nothing may stop."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD)  # runs what is pending: inside the try
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _raise(_number: int, _frame: FrameType | None) -> None:
    raise Told
