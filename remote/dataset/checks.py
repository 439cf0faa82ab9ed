"""Whether the arrays of a split fit each other, and the tokens and identifiers they speak of."""

from collections.abc import Iterator

import numpy as np

from remote.dataset.compact import Compact, decoded
from remote.dataset.grids import SEQ_LEN, SIDE, TRANSPOSING, VOCAB_SIZE
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


def compact_problems(compact: Compact) -> Iterator[str]:
    """Augmentations that are none, and grids that do not fit where they stand: about a second."""
    symmetries, colours = decoded(compact.augmentations)
    wrong = (symmetries > 7) | (np.sort(colours, axis=1) != np.arange(10)).any(axis=1)
    if wrong.any():
        first = int(np.argmax(wrong))
        code = compact.augmentations[first]
        yield f"augmentation {first} is {code}, no symmetry with a permutation of colours"
        return
    height, width = _largest_of_pairs(compact)
    turned = np.array(TRANSPOSING)[_per_pair(symmetries, compact)]
    height, width = np.where(turned, width, height), np.where(turned, height, width)
    row, column = np.divmod(compact.shifts, np.uint16(SIDE))
    wrong = (row + height > SIDE) | (column + width > SIDE)
    if wrong.any():
        first = int(np.argmax(wrong))
        yield (
            f"training example {first} stands at row {row[first]}, column {column[first]}, where"
            f" {height[first]}x{width[first]} cells do not fit"
        )


def _index_problems(name: str, offsets: np.ndarray, entries: int, end: int) -> Iterator[str]:
    """`entries` + 1 rising offsets from 0 to `end`."""
    if len(offsets) != entries + 1:
        yield f"{name} has {len(offsets)} entries, expected {entries + 1}"
    elif offsets[0] != 0 or offsets[-1] != end:
        yield f"{name} runs from {offsets[0]} to {offsets[-1]}, expected 0 to {end}"
    elif (np.diff(offsets) <= 0).any():
        yield f"{name} does not rise everywhere: entry {int(np.argmax(np.diff(offsets) <= 0))}"


def _per_pair(of_puzzles: np.ndarray, compact: Compact) -> np.ndarray:
    return np.repeat(of_puzzles, np.repeat(compact.pairs[0], compact.puzzles))


def _largest_of_pairs(compact: Compact) -> tuple[np.ndarray, np.ndarray]:
    """Height and width that input and output of each training example need: uint8 [N], [N]."""
    pairs = compact.sizes.reshape(-1, 2, 2).max(axis=1)[: compact.pairs[0].sum()]
    by_group = np.split(pairs, np.cumsum(compact.pairs[0])[:-1])
    needed = np.concatenate(
        [np.tile(group, (count, 1)) for group, count in zip(by_group, compact.puzzles, strict=True)]
    )
    return needed[:, 0], needed[:, 1]
