"""NumPy's legacy random stream (`np.random.seed`), drawn in bulk and interpreted here.

The bytes of a dataset depend only on the order of draws.  Taking the raw 32-bit words in blocks
and rejecting by mask as numpy does gives the same numbers at a fraction of the cost of one numpy
call per draw, of which a build with 1000 augmentations needs about twenty million.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np

WORDS_PER_BLOCK = 1 << 16
Limit = tuple[int, int]  # the mask and the greatest value of one draw


class LegacyRandom:
    def __init__(self, seed: int) -> None:
        self._next_word = chain.from_iterable(_blocks(seed)).__next__

    def below(self, n: int) -> int:
        """Uniform in [0, n), as `np.random.randint(0, n)`; n = 1 draws nothing."""
        drawn: list[int] = []
        self.draw(limits((n,)), drawn)
        return drawn[0]

    def draw(self, pattern: Iterable[Limit], into: list[int] | bytearray) -> None:
        """Append one value for each limit.  A loop of its own: a build draws 27 million."""
        next_word, append = self._next_word, into.append
        for mask, top in pattern:
            if not mask:
                append(0)
                continue
            value = next_word() & mask
            while value > top:
                value = next_word() & mask
            append(value)

    def shuffle(self, items: list[Any]) -> None:
        """In place, as `np.random.shuffle` and `np.random.permutation`."""
        for i in range(len(items) - 1, 0, -1):
            j = self.below(i + 1)
            items[i], items[j] = items[j], items[i]


def limits(bounds: Iterable[int]) -> list[Limit]:
    """What `draw` takes to draw below each of `bounds`, in order."""
    return [((1 << (n - 1).bit_length()) - 1, n - 1) for n in bounds]


def _blocks(seed: int) -> Iterator[list[int]]:
    state = np.random.RandomState(seed)
    while True:
        yield state.randint(0, 1 << 32, size=WORDS_PER_BLOCK, dtype=np.uint32).tolist()
