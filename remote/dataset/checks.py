"""Whether the arrays of a split fit each other, and the tokens and identifiers they speak of."""

from collections.abc import Iterator

import numpy as np

from remote.dataset.grids import SEQ_LEN, VOCAB_SIZE
from remote.dataset.split import LARGE, Split


def split_problems(split: Split) -> Iterator[str]:
    """Each with what was found and what was expected; takes milliseconds, reads no example."""
    examples, puzzles = len(split.inputs), len(split.puzzle_identifiers)
    if (split.seq_len, split.vocab_size) != (SEQ_LEN, VOCAB_SIZE):
        found = f"seq_len {split.seq_len}, vocab_size {split.vocab_size}"
        yield f"found {found}, expected {SEQ_LEN}, {VOCAB_SIZE}"
    for name in LARGE:
        array = getattr(split, name)
        if array.dtype != np.uint8 or array.shape != (examples, split.seq_len):
            expected = f"uint8 {(examples, split.seq_len)}"
            yield f"{name} is {array.dtype} {array.shape}, expected {expected}"
    yield from _index_problems("puzzle_indices", split.puzzle_indices, puzzles, examples)
    yield from _index_problems("group_indices", split.group_indices, split.groups, puzzles)
    if not examples:
        yield "found no examples, expected at least one"
    ids = split.puzzle_identifiers
    if puzzles and not (ids.min() >= 0 and ids.max() < split.num_puzzle_identifiers):
        expected = f"0..{split.num_puzzle_identifiers - 1}"
        yield f"puzzle_identifiers span {ids.min()}..{ids.max()}, expected within {expected}"


def _index_problems(name: str, offsets: np.ndarray, entries: int, end: int) -> Iterator[str]:
    """`entries` + 1 rising offsets from 0 to `end`."""
    if len(offsets) != entries + 1:
        yield f"{name} has {len(offsets)} entries, expected {entries + 1}"
    elif offsets[0] != 0 or offsets[-1] != end:
        yield f"{name} runs from {offsets[0]} to {offsets[-1]}, expected 0 to {end}"
    elif (np.diff(offsets) <= 0).any():
        yield f"{name} does not rise everywhere: entry {int(np.argmax(np.diff(offsets) <= 0))}"
