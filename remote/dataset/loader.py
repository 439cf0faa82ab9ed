"""The batches of a whole run, made ahead by one thread that outlives the iterations.

While a run evaluates, the thread plans the next iteration and fills its queue, so that training
goes on at once; the plan of ten thousand epochs takes seconds.  It is a thread: what it does is
numpy's, which holds no lock, and a queue of arrays needs no /dev/shm, whose default of 64 MB in
containers ends the worker processes of torch's loader with a bus error.  The loader's memory is
`depth` batches of 7204 bytes a row.
"""

from collections.abc import Callable, Generator, Iterator

from remote.dataset.batches import Batch, Shard, TrainingIteration
from remote.dataset.prefetch import prefetched


class Loader:
    """`plan` gives the iteration of a number, which counts from 1 to `last`."""

    def __init__(
        self,
        plan: Callable[[int], TrainingIteration],
        shard: Shard,
        *,
        last: int,
        depth: int = 4,
    ) -> None:
        self._plan, self._shard, self._last, self._depth = plan, shard, last, depth
        self._ready: Generator[int | Batch | None, None, None] | None = None
        self._next: tuple[int, int] | None = None  # which iteration, from which batch on, is next

    def iteration(self, number: int, *, skip: int = 0) -> tuple[int, Iterator[Batch]]:
        """How many batches it has in all, and this rank's rows of each from number `skip` on."""
        if self._next != (number, skip):
            self.close()
            self._ready = prefetched(self._from(number, skip), depth=self._depth)
        self._next = None  # until the last batch was taken
        return next(self._ready), self._batches(number, self._ready)

    def close(self) -> None:
        """Ends the thread, and with it any iterator of batches."""
        if self._ready is not None:
            self._ready.close()
        self._ready = self._next = None

    def _batches(self, number: int, ready: Iterator[int | Batch | None]) -> Iterator[Batch]:
        while (batch := next(ready, None)) is not None:
            yield batch
        if ready is self._ready:
            self._next = (number + 1, 0)

    def _from(self, number: int, skip: int) -> Iterator[int | Batch | None]:
        """Of each iteration its length, its batches, and None."""
        for later in range(number, self._last + 1):
            iteration = self._plan(later)
            yield len(iteration)
            yield from iteration.batches(self._shard, skip=skip if later == number else 0)
            yield None
