"""OS locks: the holder of a run's lock is its driver, the holder of keeper.lock the keeper.

A dead process frees its lock, a stopped one keeps it.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpurun.clock import Deadline

PROBES_PASS_S = 0.3


class Taken(Exception):
    """Another process holds the lock."""


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold the lock, with our pid in the file, until the block ends; Taken if it is held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take(descriptor, path)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)  # a pid left there might be another process's by then
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path) -> None:
    """Whoever asks for the holder has the lock for a moment: try again before giving up."""
    deadline = Deadline(PROBES_PASS_S, poll_s=0.02)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if deadline.passed():
                raise Taken(str(path)) from error


def holder(path: Path) -> int | None:
    """The pid of the process that holds the lock; None when it is free."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 32, 0).strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(descriptor)
    return None
