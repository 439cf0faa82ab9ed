"""A compact dataset as the arrays it stands for; sequences are drawn when they are asked for."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from remote.dataset.compact import Compact, decoded
from remote.dataset.drawing import Drawings
from remote.dataset.grids import SEQ_LEN
from remote.dataset.identifiers import numbered
from remote.dataset.split import SPLITS, Rows

INPUT, LABEL = 0, 1


def arrays_of(compact: Compact, split: str) -> dict[str, Any]:
    """The five arrays of a split by name, the two large ones as `Rows`."""
    pairs = compact.pairs[SPLITS.index(split)]
    group_of = np.repeat(np.arange(len(pairs)), compact.puzzles)  # of each puzzle of the dataset
    here = pairs[group_of] > 0
    group_of = group_of[here]
    symmetries, colours = decoded(compact.augmentations[here])
    examples = _Examples(
        puzzle_indices=_offsets(pairs[group_of]),
        first_pairs=(np.cumsum(pairs) - pairs)[group_of].astype(np.int32),
        symmetries=symmetries,
        colours=colours,
        shifts=compact.shifts if split == "train" else None,
        drawings=Drawings(compact.grids_of(split)),
    )
    return {
        "inputs": DrawnRows(examples, INPUT),
        "labels": DrawnRows(examples, LABEL),
        "puzzle_identifiers": numbered(compact)[here],
        "puzzle_indices": examples.puzzle_indices,
        "group_indices": _offsets(compact.puzzles[pairs > 0]),
    }


@dataclass(frozen=True, slots=True)
class _Examples:
    puzzle_indices: np.ndarray  # int32 [P + 1]
    first_pairs: np.ndarray  # int32 [P]: of each puzzle, among the pairs of the split
    symmetries: np.ndarray  # uint8 [P]
    colours: np.ndarray  # uint8 [P, 10]
    shifts: np.ndarray | None  # uint16 [N]; None: all stand in the corner
    drawings: Drawings  # of the input and the output of every pair

    def drawn(self, examples: np.ndarray, role: int) -> np.ndarray:
        examples = examples.astype(np.int32)  # of any other type all the indices would be converted
        puzzles = np.searchsorted(self.puzzle_indices, examples, side="right") - 1
        pairs = self.first_pairs[puzzles] + examples - self.puzzle_indices[puzzles]
        shifts = np.zeros_like(pairs) if self.shifts is None else self.shifts[examples]
        return self.drawings.tokens(
            2 * pairs + role, self.symmetries[puzzles], self.colours[puzzles], shifts
        )


class DrawnRows(Rows):
    """Reads like the uint8 array [N, 900] of all inputs, or all labels."""

    def __init__(self, examples: _Examples, role: int) -> None:
        self._examples, self._role = examples, role
        self.shape = (int(examples.puzzle_indices[-1]), SEQ_LEN)
        self.dtype = np.dtype(np.uint8)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """By a slice or an array of non-negative numbers."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        return self._examples.drawn(np.asarray(rows), self._role)


def _offsets(counts: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
