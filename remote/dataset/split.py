"""One split of a dataset, opened: the same for both of its forms."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

SPLITS = ("train", "test")
SET = "all"
LARGE = ("inputs", "labels")
SMALL = ("puzzle_identifiers", "puzzle_indices", "group_indices")
MANIFEST = "manifest.json"


class DatasetError(Exception):
    """The dataset is not there, not complete, or does not fit."""


class Rows(Protocol):
    """Sequences by number, as a uint8 array [N, seq_len] gives them."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any) -> np.ndarray: ...


@dataclass(frozen=True, slots=True)
class Split:
    """N examples of P puzzles (augmentations) in G groups (base puzzles)."""

    pad_id: int
    blank_identifier_id: int
    vocab_size: int
    seq_len: int
    num_puzzle_identifiers: int
    mean_puzzle_examples: float
    inputs: Rows
    labels: Rows
    puzzle_identifiers: np.ndarray  # int32 [P]
    puzzle_indices: np.ndarray  # int32 [P + 1]: offsets into the examples
    group_indices: np.ndarray  # int32 [G + 1]: offsets into the puzzles
    # Of a split joined from several sets: how many groups each has.  Batches never mix sets.
    groups_in_sets: tuple[int, ...] = ()

    @property
    def groups(self) -> int:
        return len(self.group_indices) - 1

    @property
    def set_groups(self) -> np.ndarray:
        """int64 [sets + 1]: offsets of the sets into the groups."""
        return np.cumsum([0, *(self.groups_in_sets or (self.groups,))])

    @property
    def set_examples(self) -> np.ndarray:
        """int32 [sets + 1]: offsets of the sets into the examples."""
        return self.puzzle_indices[self.group_indices[self.set_groups]]
