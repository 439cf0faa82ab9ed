"""Which augmentations of a puzzle are kept: distinct ones, drawn as upstream draws them."""

import functools
from dataclasses import dataclass
from itertools import chain

import numpy as np

from remote.dataset.grids import DIHEDRAL_INVERSE, SIDE, TRANSPOSING, Grid, dihedral
from remote.dataset.legacy_random import LegacyRandom, Limit, limits

TRIALS_PER_AUGMENTATION = 5
Pair = tuple[Grid, Grid]

# One trial: a symmetry, then a shuffle of the colours 1-9 from the last one down.
_TRIAL = limits((8, 9, 8, 7, 6, 5, 4, 3, 2))

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
    colours: np.ndarray  # uint8 [A, 10]: the new colour of each


def augment(name: str, pairs: dict[str, list[Pair]], num_aug: int, random: LegacyRandom) -> Group:
    """Up to `num_aug` distinct augmentations from at most five times as many trials."""
    tables = _hash_tables([pair for split in pairs.values() for pair in split])
    symmetries = [np.zeros(1, np.uint8)]
    colours = [np.arange(10, dtype=np.uint8)[None]]
    seen = set(_content_hashes(tables, symmetries[0], colours[0]))
    trials_left = TRIALS_PER_AUGMENTATION * num_aug
    missing = num_aug
    # Drawing only as many trials as are still missing never draws past the last accepted one.
    while missing and trials_left:
        tried = min(missing, trials_left)
        trials_left -= tried
        trial_symmetries, trial_colours = draw_trials(random, tried)
        new = []
        for trial, content in enumerate(_content_hashes(tables, trial_symmetries, trial_colours)):
            if content not in seen:
                seen.add(content)
                new.append(trial)
        symmetries.append(trial_symmetries[new])
        colours.append(trial_colours[new])
        missing -= len(new)
    return Group(name, pairs, np.concatenate(symmetries), np.concatenate(colours))


def draw_trials(random: LegacyRandom, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Symmetries uint8 [count] and colour maps uint8 [count, 10]; colour 0 stays."""
    drawn = bytearray()
    for _ in range(count):
        random.draw(_TRIAL, drawn)
    symmetries, *swaps = np.frombuffer(drawn, np.uint8).reshape(count, len(_TRIAL)).T
    colours = np.tile(np.arange(10, dtype=np.uint8), (count, 1))
    rows = np.arange(count)
    for last, swap in zip(range(9, 1, -1), swaps, strict=True):
        other = swap + 1
        colours[rows, other], colours[:, last] = colours[:, last].copy(), colours[rows, other]
    return symmetries, colours


def draw_shifts(group: Group, random: LegacyRandom) -> np.ndarray:
    """How far each training pair of each augmentation stands from the corner: uint16 [A * pairs].

    It is 30 * row + column.  One pair of each augmentation, drawn first, stays in the corner.
    """
    pairs = group.pairs["train"]
    which_stays = limits((len(pairs),))
    largest = [np.maximum(a.shape, b.shape).tolist() for a, b in pairs]
    upright = [(SIDE - height + 1, SIDE - width + 1) for height, width in largest]
    lying = [(right, down) for down, right in upright]
    patterns = [
        [_shift_pattern(rooms, stays) for stays in range(len(pairs))] for rooms in (upright, lying)
    ]
    drawn = bytearray()
    for symmetry in group.symmetries.tolist():
        stays: list[int] = []
        random.draw(which_stays, stays)
        random.draw(patterns[TRANSPOSING[symmetry]][stays[0]], drawn)
    rows, columns = np.frombuffer(drawn, np.uint8).reshape(-1, 2).T.astype(np.uint16)
    return rows * np.uint16(SIDE) + columns


def _shift_pattern(rooms: list[tuple[int, int]], stays: int) -> list[Limit]:
    bounds = [(1, 1) if index == stays else room for index, room in enumerate(rooms)]
    return limits(chain.from_iterable(bounds))


def _hash_tables(pairs: list[Pair]) -> np.ndarray:
    """uint64 [pairs, 8, 10]: for each symmetry, the summed weight of the cells of each colour."""
    tables = np.zeros((len(pairs), 8, 10), np.uint64)
    for table, pair in zip(tables, pairs, strict=True):
        for role, grid in enumerate(pair):
            has_colour = grid.reshape(-1) == np.arange(10)[:, None]  # [10, cells]
            table += (has_colour.astype(np.uint64) @ _cell_weights(role, *grid.shape)).T
    return tables


@functools.cache
def _cell_weights(role: int, height: int, width: int) -> np.ndarray:
    """uint64 [cells, 8]: the weight of the place to which each symmetry takes each cell."""
    places = []
    for symmetry in range(8):
        turned = (width, height) if TRANSPOSING[symmetry] else (height, width)
        weights = _CELL_WEIGHTS[role][: turned[0], : turned[1]]
        places.append(dihedral(weights, DIHEDRAL_INVERSE[symmetry]).reshape(-1))
    return np.stack(places, axis=1)


def _content_hashes(tables: np.ndarray, symmetries: np.ndarray, colours: np.ndarray) -> list[int]:
    """One number per trial, equal when the puzzles, as bags of pairs, are equal.

    A linear hash per pair (so that a colour map costs ten multiplications, not a pass over the
    cells), scrambled before the sum over pairs, which makes their order irrelevant.
    """
    linear = (tables[:, symmetries] * _COLOUR_WEIGHTS[colours]).sum(axis=2)  # [pairs, trials]
    linear ^= linear >> np.uint64(29)
    linear *= np.uint64(0xBF58476D1CE4E5B9)
    linear ^= linear >> np.uint64(32)
    return linear.sum(axis=0).tolist()
