"""Which augmentations of a puzzle are kept: distinct ones, drawn as upstream draws them."""

from dataclasses import dataclass

import numpy as np

from remote.dataset.grids import SIDE, Grid, dihedral
from remote.dataset.legacy_random import LegacyRandom

TRIALS_PER_AUGMENTATION = 5
Pair = tuple[Grid, Grid]

# Weights of the content hash below.  Fixed, so that a build repeats; their values do not matter.
_weights = np.random.Generator(np.random.Philox(key=900))
_CELL_WEIGHTS = _weights.integers(1, 1 << 63, size=(2, SIDE, SIDE), dtype=np.uint64)
_COLOUR_WEIGHTS = _weights.integers(1, 1 << 63, size=10, dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class Group:
    """A puzzle and its augmentations; row 0 is the puzzle itself."""

    name: str
    pairs: dict[str, list[Pair]]  # by split
    symmetries: np.ndarray  # uint8 [A]
    colours: np.ndarray  # uint8 [A, 10]


def augment(name: str, pairs: dict[str, list[Pair]], num_aug: int, random: LegacyRandom) -> Group:
    """Up to `num_aug` distinct augmentations from at most five times as many trials."""
    tables = _hash_tables([pair for split in pairs.values() for pair in split])
    symmetries, colours = [0], [list(range(10))]
    seen = set(_content_hashes(tables, symmetries, colours))
    trials_left = TRIALS_PER_AUGMENTATION * num_aug
    missing = num_aug
    # Drawing only as many trials as are still missing never draws past the last accepted one.
    while missing and trials_left:
        trials = [_trial(random) for _ in range(min(missing, trials_left))]
        trials_left -= len(trials)
        hashes = _content_hashes(tables, *zip(*trials, strict=True))
        for (symmetry, colour_map), content in zip(trials, hashes, strict=True):
            if content not in seen:
                seen.add(content)
                symmetries.append(symmetry)
                colours.append(colour_map)
        missing = num_aug + 1 - len(symmetries)
    return Group(name, pairs, np.array(symmetries, np.uint8), np.array(colours, np.uint8))


def _trial(random: LegacyRandom) -> tuple[int, list[int]]:
    symmetry = random.below(8)
    colours = list(range(1, 10))
    random.shuffle(colours)
    return symmetry, [0, *colours]


def _hash_tables(pairs: list[Pair]) -> np.ndarray:
    """uint64 [pairs, 8, 10]: for each symmetry, the summed weight of the cells of each colour."""
    tables = np.zeros((len(pairs), 8, 10), np.uint64)
    for table, pair in zip(tables, pairs, strict=True):
        for grid, weights in zip(pair, _CELL_WEIGHTS, strict=True):
            for symmetry in range(8):
                turned = dihedral(grid, symmetry)
                here = weights[: turned.shape[0], : turned.shape[1]]
                np.add.at(table[symmetry], turned, here)
    return tables


def _content_hashes(tables: np.ndarray, symmetries: object, colours: object) -> list[int]:
    """One number per trial, equal when the puzzles, as bags of pairs, are equal.

    A linear hash per pair (so that a colour map costs ten multiplications, not a pass over the
    cells), scrambled before the sum over pairs, which makes their order irrelevant.
    """
    weights = _COLOUR_WEIGHTS[np.array(colours)]  # [trials, 10]
    linear = (tables[:, np.array(symmetries)] * weights).sum(axis=2)  # [pairs, trials]
    linear ^= linear >> np.uint64(29)
    linear *= np.uint64(0xBF58476D1CE4E5B9)
    linear ^= linear >> np.uint64(32)
    return linear.sum(axis=0).tolist()
