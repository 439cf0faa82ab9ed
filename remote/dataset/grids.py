"""ARC grids, their eight symmetries, and their form as 900 tokens.

A sequence is a 30x30 canvas, row-major: PAD 0, EOS 1, colours 0-9 as 2-11.  A grid stands at some
offset; EOS marks the row just below it and the column just right of it, where they fit.
"""

import numpy as np

SIDE = 30
SEQ_LEN = SIDE * SIDE
PAD, EOS, FIRST_COLOUR = 0, 1, 2
VOCAB_SIZE = 12
IGNORE_LABEL = -100  # in memory; on disk an ignored label is PAD

DIHEDRAL_INVERSE = (0, 3, 2, 1, 4, 5, 6, 7)
TRANSPOSING = (False, True, False, True, False, False, True, True)
NAME_SEPARATOR = "|||"

Grid = np.ndarray  # uint8 [height, width], cells 0-9


def parse_grid(rows: list[list[int]]) -> Grid:
    grid = np.array(rows)
    whole = grid.ndim == 2 and grid.size and grid.dtype.kind == "i" and max(grid.shape) <= SIDE
    if not whole or grid.min() < 0 or grid.max() > 9:
        raise ValueError(
            "a grid must be at most 30x30 cells of 0-9, this one is"
            f" {grid.shape} of {grid.dtype} cells"
        )
    return grid.astype(np.uint8)


def dihedral(grid: Grid, symmetry: int) -> Grid:
    """0 identity, 1-3 quarter turns counter-clockwise, 4 left-right flip, 5 up-down flip,
    6 transpose, 7 left-right flip of a quarter turn."""
    if symmetry >= 6 or symmetry in (1, 3):
        grid = grid.T
    if symmetry in (2, 3, 4, 7):
        grid = grid[:, ::-1]
    return grid[::-1] if symmetry in (1, 2, 5, 7) else grid


def augmented_name(name: str, symmetry: int, colours: str) -> str:
    """`colours` has ten digits: digit c is the new colour of colour c."""
    return f"{name}{NAME_SEPARATOR}t{symmetry}{NAME_SEPARATOR}{colours}"
