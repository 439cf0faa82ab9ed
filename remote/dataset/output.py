"""Files that are digested as they are written, in a directory that appears when it is complete."""

import contextlib
import fcntl
import hashlib
import mmap
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

BUFFER_BYTES = 4 << 20
ALIGNMENT_BYTES = 4096
Piece = bytes | memoryview


def write(path: Path, pieces: Iterable[Piece]) -> dict[str, int | str]:
    """Write all pieces past the page cache; returns the manifest's entry, bytes and sha256.

    A dataset of 10 GB would otherwise push everything else out of memory, and in a container count
    as the builder's own.  Where the file system knows no direct writes they are ordinary ones.
    """
    digest, size, filled = hashlib.sha256(), 0, 0
    with _opened(path) as file, mmap.mmap(-1, BUFFER_BYTES) as buffer:  # mmap: aligned to a page
        for piece in pieces:
            left = memoryview(piece).cast("B") if len(piece) else memoryview(b"")
            size += len(left)
            while left:
                taken = min(BUFFER_BYTES - filled, len(left))
                buffer[filled : filled + taken] = left[:taken]
                filled, left = filled + taken, left[taken:]
                if filled == BUFFER_BYTES:
                    digest.update(buffer)
                    _write_all(file, buffer, filled)
                    filled = 0
        digest.update(buffer[:filled])
        _write_all(file, buffer, -(-filled // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
        os.ftruncate(file, size)
        os.fsync(file)
    return {"bytes": size, "sha256": digest.hexdigest()}


@contextlib.contextmanager
def appearing_at_once(output: Path) -> Iterator[Path]:
    """A directory beside `output` that takes its place on success and is removed otherwise.

    After a kill at any moment `output` is what it was, absent, or complete.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(output)
    unfinished = output.with_name(f".{output.name}.building-{os.getpid()}")
    replaced = output.with_name(f".{output.name}.replaced-{os.getpid()}")
    unfinished.mkdir()
    try:
        with _locked(unfinished):
            yield unfinished
            if output.exists():
                output.rename(replaced)
            unfinished.rename(output)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)


def _remove_abandoned(output: Path) -> None:
    """What builds that were killed left behind; one that still runs holds the lock of its own."""
    for kind in ("building", "replaced"):
        for path in output.parent.glob(f".{output.name}.{kind}-*"):
            with contextlib.suppress(BlockingIOError, FileNotFoundError), _locked(path):
                shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        file = os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o644)
    except OSError:  # the file system refuses direct writes; what else is wrong is wrong again
        file = os.open(path, flags, 0o644)
    try:
        yield file
    finally:
        os.close(file)


def _write_all(file: int, buffer: mmap.mmap, size: int) -> None:
    with memoryview(buffer) as view:
        done = 0
        while done < size:
            done += os.write(file, view[done:size])
