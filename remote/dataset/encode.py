"""Groups of augmented grids as tokens, a whole group at a time.

Moving a grid by (row, column) on the canvas shifts its sequence by 30 * row + column, so each
augmentation is drawn once at the corner and then read through a window that starts earlier.
"""

import numpy as np

from remote.dataset.augment import Group, Pair
from remote.dataset.grids import (
    EOS,
    FIRST_COLOUR,
    PAD,
    SEQ_LEN,
    SIDE,
    TRANSPOSING,
    Grid,
    dihedral,
)
from remote.dataset.legacy_random import LegacyRandom

# In templates only.  The column of EOS right of a grid is there only if it fits, which depends on
# the augmentation's offset: its token is looked up like a colour.
EOS_COLUMN = FIRST_COLOUR + 10


def draw_offsets(
    group: Group, pairs: list[Pair], random: LegacyRandom, *, translate: bool
) -> np.ndarray:
    """Row and column of every pair: uint8 [A, pairs, 2].

    One pair of each augmentation, drawn first, stays in the corner; so do all if not `translate`.
    """
    limits = [np.maximum(a.shape, b.shape).tolist() for a, b in pairs]
    below, offsets = random.below, []
    for symmetry in group.symmetries.tolist():
        kept = below(len(pairs))
        for index, (height, width) in enumerate(limits):
            if not translate or index == kept:
                offsets += (0, 0)
                continue
            if TRANSPOSING[symmetry]:
                height, width = width, height
            offsets += (below(SIDE - height + 1), below(SIDE - width + 1))
    return np.array(offsets, np.uint8).reshape(-1, len(pairs), 2)


def encode(group: Group, grids: list[Grid], offsets: np.ndarray) -> np.ndarray:
    """Tokens of all augmentations of `grids`: uint8 [A * grids, 900], augmentation by augmentation.

    `offsets` is [A, grids, 2] from `draw_offsets`.
    """
    out = np.empty((len(group.symmetries), len(grids), SEQ_LEN), np.uint8)
    tokens = np.zeros((len(group.symmetries), EOS_COLUMN + 1), np.uint8)
    tokens[:, EOS] = EOS
    tokens[:, FIRST_COLOUR:EOS_COLUMN] = group.colours + FIRST_COLOUR
    for symmetry in range(8):
        rows = np.flatnonzero(group.symmetries == symmetry)
        if not len(rows):
            continue
        for index, grid in enumerate(grids):
            turned = dihedral(grid, symmetry)
            out[rows, index] = _place(turned, tokens[rows], offsets[rows, index].astype(np.int64))
    return out.reshape(-1, SEQ_LEN)


def _place(grid: Grid, tokens: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """One grid in many colours [R, 13] at many offsets [R, 2]: uint8 [R, 900]."""
    template = _template(grid)
    tokens[:, EOS_COLUMN] = np.where(offsets[:, 1] + grid.shape[1] < SIDE, EOS, PAD)
    # Each row: 900 PADs, then the sequence drawn at the corner, then PADs.
    drawn = np.zeros((len(tokens), 2 * SEQ_LEN), np.uint8)
    drawn[:, SEQ_LEN : SEQ_LEN + len(template)] = tokens.take(template, axis=1)
    windows = np.lib.stride_tricks.as_strided(
        drawn, (drawn.size - SEQ_LEN + 1, SEQ_LEN), (1, 1), writeable=False
    )
    shift = offsets[:, 0] * SIDE + offsets[:, 1]
    return windows[np.arange(1, 2 * len(tokens), 2) * SEQ_LEN - shift]


def _template(grid: Grid) -> np.ndarray:
    height, width = grid.shape
    canvas = np.zeros((height + 1, SIDE), np.intp)
    canvas[:height, :width] = grid.astype(np.intp) + FIRST_COLOUR
    canvas[height, :width] = EOS
    if width < SIDE:
        canvas[:height, width] = EOS_COLUMN
    return canvas.reshape(-1)[:SEQ_LEN]
