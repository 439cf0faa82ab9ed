"""Grids of a batch in their puzzle's own colours and orientation, as bytes that name the grid.

The bytes are the grid's cells as tokens, row by row of the 30x30 canvas, from the first cell to the
last; what lies between the rows is zero.  Tokens of colours are not zero, so the length tells the
size, and equal bytes are equal grids: no digest is needed, and the grid can be read back.
"""

import numpy as np

from remote.dataset.grids import (
    DIHEDRAL_INVERSE,
    FIRST_COLOUR,
    SEQ_LEN,
    SIDE,
    VOCAB_SIZE,
    Grid,
    dihedral,
)

# What each symmetry does to a grid in the canvas's first corner: whether it then lies at the end of
# the rows, at the end of the columns, and whether its height is now its width.
MOVES = np.array(
    [(0, 0, 0), (1, 0, 1), (1, 1, 0), (0, 1, 1), (0, 1, 0), (1, 0, 0), (0, 0, 1), (1, 1, 1)], bool
)
CELLS = np.arange(SEQ_LEN).reshape(SIDE, SIDE)
SOURCES = [dihedral(CELLS, symmetry).reshape(-1) for symmetry in range(len(MOVES))]


def grid_sizes(tokens: np.ndarray) -> np.ndarray:
    """Height and width of the grid in each sequence: int [N, 2] from uint8 [N, 900].

    It is the rectangle of largest area that starts at the corner and holds colours only; of
    equals, the first met when heights are tried in order.
    """
    other = np.ones((len(tokens), SIDE, SIDE + 1), bool)  # the last column ends every run
    canvases = tokens.reshape(-1, SIDE, SIDE)
    # Below FIRST_COLOUR the difference wraps to 254 and 255.
    np.greater_equal(
        canvases - np.uint8(FIRST_COLOUR), VOCAB_SIZE - FIRST_COLOUR, out=other[..., :SIDE]
    )
    width = np.minimum.accumulate(other.argmax(axis=2), axis=1)  # [N, 30]: down to each row
    last_row = (width * np.arange(1, SIDE + 1)).argmax(axis=1)
    width = width[np.arange(len(tokens)), last_row]
    return np.stack((np.where(width > 0, last_row + 1, 0), width), axis=1)


def original_grids(
    tokens: np.ndarray, symmetries: np.ndarray, undo_colours: np.ndarray
) -> list[bytes]:
    """tokens uint8 [N, 900], symmetries int [N] and undo_colours uint8 [N, 10] of augmentations."""
    sizes = grid_sizes(tokens)
    inverses = np.array(DIHEDRAL_INVERSE)[symmetries]
    canvases = _coloured_back(_only_grids(tokens, sizes), undo_colours)
    for inverse in np.unique(inverses[inverses > 0]).tolist():
        rows = np.flatnonzero(inverses == inverse)
        canvases[rows] = canvases[rows][:, SOURCES[inverse]]
    last_rows, last_columns, turned = MOVES[inverses].T
    heights, widths = np.where(turned, sizes.T[::-1], sizes.T)
    starts = last_rows * (SIDE - heights) * SIDE + last_columns * (SIDE - widths)
    starts += np.arange(len(tokens)) * SEQ_LEN
    ends = np.where(widths > 0, starts + (heights - 1) * SIDE + widths, starts)
    content = canvases.tobytes()
    return [content[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


def name_of(grid: Grid) -> bytes:
    """The same bytes for a grid as it stands in a puzzle."""
    canvas = np.zeros((grid.shape[0], SIDE), np.uint8)
    canvas[:, : grid.shape[1]] = grid + np.uint8(FIRST_COLOUR)
    return canvas.tobytes()[: (grid.shape[0] - 1) * SIDE + grid.shape[1]]


def rows_of(name: bytes) -> list[list[int]]:
    """The grid that the bytes name, as JSON has it; [] for no grid."""
    width = (len(name) - 1) % SIDE + 1 if name else 0
    starts = range(0, len(name), SIDE)
    return [[token - FIRST_COLOUR for token in name[s : s + width]] for s in starts]


def _only_grids(tokens: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Zero outside of each grid: uint8 [N, 30, 30]."""
    within = np.arange(SIDE)[None, :] < sizes.T[..., None]  # [2, N, 30]
    return tokens.reshape(-1, SIDE, SIDE) * (within[0][:, :, None] & within[1][:, None, :])


def _coloured_back(canvases: np.ndarray, undo_colours: np.ndarray) -> np.ndarray:
    """uint8 [N, 900]"""
    tokens = np.zeros((len(canvases), VOCAB_SIZE), np.uint8)
    tokens[:, FIRST_COLOUR:] = undo_colours + np.uint8(FIRST_COLOUR)
    first = np.arange(0, tokens.size, VOCAB_SIZE)[:, None]
    return np.take(tokens.reshape(-1), canvases.reshape(-1, SEQ_LEN) + first)
