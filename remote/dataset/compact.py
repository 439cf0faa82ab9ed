"""The compact form of a dataset: what the arrays are made of, instead of the arrays.

Of the 1800 bytes of an example almost nothing is its own: the grids are those of its base puzzle,
the symmetry and the colours those of its augmentation, and only the place on the canvas (two
bytes, training pairs only) is drawn for it alone.  So one file of base grids, four bytes for each
augmentation and two for each training pair holds all: 17 MB where the arrays take 9.65 GB with
1000 augmentations.  A rented box builds or fetches it in seconds, and `drawing.py` turns it into
the same sequences, byte for byte, faster than a trainer asks for them.

Chosen over storing the random seed alone, which would be smaller still: replaying numpy's legacy
stream takes as long as building, on every rank, each time a split is opened.  And over compressing
the arrays, whose rows are read in random order.
"""

import zipfile
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from remote.dataset.augment import Group
from remote.dataset.grids import Grid
from remote.dataset.split import SPLITS, DatasetError

FILE = "compact.npz"
_LEADING = 10**8  # an augmentation is symmetry * _LEADING + the new colours of 1 to 8 as digits


@dataclass(frozen=True, slots=True)
class Compact:
    """G groups of P augmentations in all; pairs are those of all groups in train, then in test."""

    names: np.ndarray  # str [G]: the base puzzles
    first_identifier: np.ndarray  # int64 []
    puzzles: np.ndarray  # int32 [G]: augmentations of each group, the puzzle itself among them
    pairs: np.ndarray  # int32 [2, G]: pairs of each group in train and in test
    augmentations: np.ndarray  # uint32 [P]
    shifts: np.ndarray  # uint16 [training examples]: 30 * row + column; test pairs are at 0
    sizes: np.ndarray  # uint8 [2 * pairs, 2]: height and width of the input and output of each pair
    cells: np.ndarray  # uint8 [cells of all grids]: row-major, colours 0-9

    @classmethod
    def of(cls, groups: list[Group], shifts: np.ndarray, first_identifier: int) -> "Compact":
        grids = [
            grid
            for split in SPLITS
            for group in groups
            for pair in group.pairs.get(split, [])
            for grid in pair
        ]
        symmetries = np.concatenate([group.symmetries for group in groups])
        colours = np.concatenate([group.colours for group in groups])
        return cls(
            names=np.array([group.name for group in groups]),
            first_identifier=np.array(first_identifier),
            puzzles=np.array([len(group.symmetries) for group in groups], np.int32),
            pairs=np.array(
                [[len(group.pairs.get(split, [])) for group in groups] for split in SPLITS],
                np.int32,
            ),
            augmentations=encoded(symmetries, colours),
            shifts=shifts,
            sizes=np.array([grid.shape for grid in grids], np.uint8),
            cells=np.concatenate([grid.reshape(-1) for grid in grids]),
        )

    @classmethod
    def load(cls, path: Path) -> "Compact":
        try:
            with np.load(path) as arrays:
                found = cls(**{field.name: arrays[field.name] for field in fields(cls)})
        except FileNotFoundError as error:
            raise DatasetError(f"no file {path}; was the dataset built?") from error
        except (zipfile.BadZipFile, KeyError, ValueError, EOFError, OSError) as error:
            raise DatasetError(f"{path} is cut short or damaged: {error}") from error
        try:
            problems = found.problems()
        except (ValueError, TypeError, IndexError) as error:
            raise DatasetError(f"{path}: its arrays are of other shapes: {error}") from error
        if problems:
            raise DatasetError(f"{path}: {'; '.join(problems)}")
        return found

    def problems(self) -> list[str]:
        """Arrays that do not fit each other: any would expand to a wrong dataset, or fail late."""
        groups, grids = len(self.names), len(self.sizes)
        examples = int((self.puzzles * self.pairs[0]).sum()) if groups else 0
        found_and_expected = {
            "puzzles": (self.puzzles.shape, (groups,)),
            "pairs": (self.pairs.shape, (2, groups)),
            "augmentations": (len(self.augmentations), int(self.puzzles.sum())),
            "sizes": (grids, 2 * int(self.pairs.sum())),
            "shifts": (len(self.shifts), examples),
            "cells": (len(self.cells), int(self.sizes.astype(np.int64).prod(axis=1).sum())),
        }
        found = [
            f"{name} has {count}, expected {expected}"
            for name, (count, expected) in found_and_expected.items()
            if count != expected
        ]
        if grids and not 1 <= self.sizes.min() <= self.sizes.max() <= 30:
            found.append(f"sizes span {self.sizes.min()}..{self.sizes.max()}, expected 1..30")
        if len(self.cells) and self.cells.max() > 9:
            found.append(f"cells hold colour {self.cells.max()}, expected at most 9")
        return found

    def grids_of(self, split: str) -> list[Grid]:
        """Input and output of every pair of one split, one after the other."""
        part = SPLITS.index(split)
        sizes = self.sizes.astype(np.int64)
        ends = np.cumsum(sizes.prod(axis=1))
        first = 2 * int(self.pairs[:part].sum())
        count = 2 * int(self.pairs[part].sum())
        return [
            self.cells[end - height * width : end].reshape(height, width)
            for end, (height, width) in zip(
                ends[first : first + count].tolist(),
                sizes[first : first + count].tolist(),
                strict=True,
            )
        ]


def encoded(symmetries: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """The last colour follows from the other eight."""
    powers = 10 ** np.arange(7, -1, -1)
    return (symmetries.astype(np.uint32) * _LEADING + colours[:, 1:9] @ powers).astype(np.uint32)


def decoded(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Symmetries uint8 [N] and colour maps uint8 [N, 10]."""
    symmetries, digits = np.divmod(codes, np.uint32(_LEADING))
    colours = np.zeros((len(codes), 10), np.uint8)
    for colour in range(8, 0, -1):
        digits, colours[:, colour] = np.divmod(digits, np.uint32(10))
    colours[:, 9] = 45 - colours.sum(axis=1)
    return symmetries.astype(np.uint8), colours
