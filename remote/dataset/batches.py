"""Which examples make which batch: a function of the seed and the iteration, nothing else.

An iteration is `epochs` passes over all groups, each in a random order, each group giving one
random puzzle (augmentation).  Puzzles are packed whole; the last one of a batch is cut to fill it
and its rest dropped; the short batch at the end is dropped.  The order of groups and puzzles is
drawn as upstream draws it, so batch counts and step names agree.  Which pairs a cut leaves is drawn
per batch, so that every rank sees the same batch and a resumed run can start at any.

Of several datasets an iteration takes one after the other, each with the next seed, as upstream's.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from remote.dataset.grids import IGNORE_LABEL
from remote.dataset.split import Split

DRAWN_AT_ONCE = 1_000_000  # an iteration can have 128 million, and numpy draws 64-bit numbers
Batch = dict[str, np.ndarray]  # inputs, labels int32 [B, seq_len]; puzzle_identifiers int32 [B]


@dataclass(frozen=True, slots=True)
class Shard:
    """Rows [rank * B / W, (rank + 1) * B / W) of every global batch of B rows."""

    rank: int = 0
    world_size: int = 1

    def of(self, rows: np.ndarray, batch_size: int) -> np.ndarray:
        local = batch_size // self.world_size
        return rows[self.rank * local : (self.rank + 1) * local]


class TrainingIteration:
    """The batches of one iteration.  `number` counts from 1, as in upstream's seeds."""

    def __init__(
        self, split: Split, *, batch_size: int, epochs: int, seed: int, number: int
    ) -> None:
        self._split, self._batch_size, self._key = split, batch_size, seed + number
        bounds = split.set_groups
        sets = len(bounds) - 1
        puzzles, begins, ends = [], [], []
        for index in range(sets):
            key = seed + (number - 1) * sets + index + 1
            drawn = _draw_puzzles(split, bounds[index], bounds[index + 1], epochs, key)
            cuts = _pack(np.diff(split.puzzle_indices)[drawn], batch_size)
            before = sum(map(len, puzzles))
            begins.append(before + cuts[:-1])
            ends.append(before + cuts[1:])
            puzzles.append(drawn)
        self._puzzles = np.concatenate(puzzles)
        self._begins, self._ends = np.concatenate(begins), np.concatenate(ends)

    def __len__(self) -> int:
        return len(self._begins)

    def batches(self, shard: Shard, *, skip: int = 0) -> Iterator[Batch]:
        """This rank's rows of each batch, from batch number `skip` on."""
        for number in range(skip, len(self)):
            examples, puzzles = self.rows(number)
            yield _collate(
                self._split,
                shard.of(examples, self._batch_size),
                shard.of(puzzles, self._batch_size),
            )

    def rows(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Example and puzzle index of each row of one global batch: int64 [B], int64 [B]."""
        random = np.random.Generator(np.random.Philox(key=[self._key, number]))
        puzzles = self._puzzles[self._begins[number] : self._ends[number]].astype(np.int64)
        starts = self._split.puzzle_indices[puzzles]
        sizes = self._split.puzzle_indices[puzzles + 1] - starts
        owners = np.repeat(np.arange(len(puzzles)), sizes)
        # Sorted by random numbers within each puzzle: where one is cut, a random choice is left.
        order = np.lexsort((random.random(len(owners)), owners))[: self._batch_size]
        owners = owners[: self._batch_size]
        return order + (starts - (np.cumsum(sizes) - sizes))[owners], puzzles[owners]


def _draw_puzzles(split: Split, first: int, end: int, epochs: int, key: int) -> np.ndarray:
    """One puzzle of each of the groups from `first` to `end`, `epochs` times over: int32 [...]."""
    random = np.random.Generator(np.random.Philox(seed=key))
    puzzles = np.empty((epochs, end - first), np.int32)
    for groups in puzzles:
        groups[:] = random.permutation(end - first)
    starts = split.group_indices[first : end + 1]
    for groups in puzzles:  # one call draws what one call per group would draw
        groups[:] = random.integers(starts[groups], starts[groups + 1])
    return puzzles.reshape(-1)


def _pack(sizes: np.ndarray, batch_size: int) -> np.ndarray:
    """Where in the sequence of puzzles each full batch begins; one more entry for the end."""
    examples = np.cumsum(sizes, dtype=np.int64)  # up to and with each puzzle
    cuts, begin, total = [0], 0, int(examples[-1])
    while begin + batch_size <= total:
        last = int(np.searchsorted(examples, begin + batch_size))
        begin = int(examples[last])
        cuts.append(last + 1)
    return np.array(cuts)


def nominal_steps(split: Split, *, batch_size: int, epochs: int) -> int:
    """Upstream's estimate, which its learning-rate schedule uses; the exact count differs a bit."""
    return int(epochs * split.groups * split.mean_puzzle_examples / batch_size)


def evaluation_batches(split: Split, *, batch_size: int) -> int:
    return int((-(-np.diff(split.set_examples) // batch_size)).sum())


def iterate_test(
    split: Split, *, batch_size: int, shard: Shard
) -> Iterator[tuple[Batch, np.ndarray]]:
    """Every example once, in order, with its index; blanks (-1) fill the last batch of a set."""
    bounds = split.set_examples.tolist()
    for first, end in itertools.pairwise(bounds):
        for start in range(first, end, batch_size):
            examples = np.arange(start, start + batch_size, dtype=np.int32)
            examples = shard.of(np.where(examples < end, examples, np.int32(-1)), batch_size)
            real = examples[examples >= 0]
            puzzles = np.searchsorted(split.puzzle_indices, real, side="right") - 1
            yield _filled(split, _collate(split, real, puzzles), len(examples)), examples


def _collate(split: Split, examples: np.ndarray, puzzles: np.ndarray) -> Batch:
    labels = split.labels[examples].astype(np.int32)
    labels[labels == split.pad_id] = IGNORE_LABEL
    return {
        "inputs": split.inputs[examples].astype(np.int32),
        "labels": labels,
        "puzzle_identifiers": split.puzzle_identifiers[puzzles].astype(np.int32),
    }


def _filled(split: Split, batch: Batch, rows: int) -> Batch:
    blanks = {
        "inputs": split.pad_id,
        "labels": IGNORE_LABEL,
        "puzzle_identifiers": split.blank_identifier_id,
    }
    return {
        name: np.concatenate(
            (array, np.full((rows - len(array), *array.shape[1:]), blanks[name], array.dtype))
        )
        for name, array in batch.items()
    }
