"""Which examples make which batch: a function of the seed and the iteration, nothing else.

An iteration is `epochs` passes over all groups, each in a random order, each group giving one
random puzzle (augmentation).  Puzzles are packed whole; the last one of a batch is cut to fill it
and its rest dropped; the short batch at the end is dropped.  The order of groups and puzzles is
drawn as upstream draws it, so batch counts and step names agree.  Which pairs a cut leaves is drawn
per batch, so that every rank sees the same batch and a resumed run can start at any.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from remote.dataset.grids import IGNORE_LABEL
from remote.dataset.layout import Split

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
        random = np.random.Generator(np.random.Philox(seed=seed + number))
        groups = np.concatenate([random.permutation(split.groups) for _ in range(epochs)])
        starts = split.group_indices
        # One call draws what one call per group would draw.
        self._puzzles = random.integers(starts[groups], starts[groups + 1]).astype(np.int32)
        sizes = np.diff(split.puzzle_indices)[self._puzzles]
        self._ends = np.cumsum(sizes, dtype=np.int64)  # examples up to and with each puzzle
        self._firsts = self._pack()

    def __len__(self) -> int:
        return len(self._firsts) - 1

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
        puzzles = self._puzzles[self._firsts[number] : self._firsts[number + 1]]
        examples, owners = [], []
        room = self._batch_size
        for puzzle in puzzles.tolist():
            start, end = self._split.puzzle_indices[puzzle : puzzle + 2].tolist()
            chosen = start + random.permutation(end - start)[:room]
            room -= len(chosen)
            examples.append(chosen)
            owners.append(np.full(len(chosen), puzzle))
        return np.concatenate(examples), np.concatenate(owners)

    def _pack(self) -> np.ndarray:
        """Where in the sequence of puzzles each full batch begins; one more entry for the end."""
        firsts, begin = [0], 0
        ends, total = self._ends, int(self._ends[-1])
        while begin + self._batch_size <= total:
            last = int(np.searchsorted(ends, begin + self._batch_size))
            begin = int(ends[last])
            firsts.append(last + 1)
        return np.array(firsts)


def nominal_steps(split: Split, *, batch_size: int, epochs: int) -> int:
    """Upstream's estimate, which its learning-rate schedule uses; the exact count differs a bit."""
    return int(epochs * split.groups * split.mean_puzzle_examples / batch_size)


def evaluation_batches(split: Split, *, batch_size: int) -> int:
    return -(-len(split.inputs) // batch_size)


def iterate_test(
    split: Split, *, batch_size: int, shard: Shard
) -> Iterator[tuple[Batch, np.ndarray]]:
    """Every example once, in order, with its index; the last batch is filled with blanks (-1)."""
    for start in range(0, len(split.inputs), batch_size):
        examples = np.arange(start, start + batch_size)
        examples = shard.of(np.where(examples < len(split.inputs), examples, -1), batch_size)
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
