"""Batches made ahead in a thread.  No worker process: none can outgrow a container's /dev/shm."""

import queue
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

T = TypeVar("T")
_END = object()


def prefetched(items: Iterator[T], *, depth: int = 4) -> Generator[T, None, None]:
    """The same items; an error in making one is raised where it would have come."""
    ready: queue.Queue = queue.Queue(maxsize=depth)
    abandoned = threading.Event()

    def put(entry: object) -> bool:
        while not abandoned.is_set():
            try:
                ready.put(entry, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def make() -> None:
        try:
            for item in items:
                if not put((item, None)):
                    return
            put((_END, None))
        except BaseException as error:  # handed to the consumer, who raises it
            put((_END, error))

    thread = threading.Thread(target=make, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        abandoned.set()
        thread.join()
