import numpy as np
import pytest

from remote.dataset.drawing import Drawings
from remote.dataset.grids import SIDE, dihedral
from tests.remote.drawn import drawn_alone

random = np.random.Generator(np.random.Philox(1))
SIZES = [(1, 1), (3, 7), (30, 30), (30, 4), (5, 30), (29, 29), (12, 12), (30, 29), (1, 30)]
GRIDS = [random.integers(0, 10, size).astype(np.uint8) for size in SIZES]


def every_place(grid: np.ndarray) -> list[tuple[int, int]]:
    height, width = grid.shape
    return [(r, c) for r in range(SIDE - height + 1) for c in range(SIDE - width + 1)]


@pytest.mark.parametrize("symmetry", range(8))
def test_every_grid_at_every_place_is_as_drawn_alone(symmetry: int) -> None:
    drawings = Drawings(GRIDS)
    colours = np.array([0, *random.permutation(np.arange(1, 10))], np.uint8)
    for index, grid in enumerate(GRIDS):
        turned = dihedral(colours[grid], symmetry)
        places = every_place(turned)
        count = len(places)
        tokens = drawings.tokens(
            np.full(count, index),
            np.full(count, symmetry),
            np.tile(colours, (count, 1)),
            np.array([SIDE * row + column for row, column in places], np.uint16),
        )
        assert tokens.dtype == np.uint8
        expected = np.stack([drawn_alone(turned, row, column) for row, column in places])
        assert np.array_equal(tokens, expected)


def test_rows_of_one_call_do_not_share_colours_or_symmetries() -> None:
    drawings, rows = Drawings(GRIDS), 500
    grids, symmetries = random.integers(0, len(GRIDS), rows), random.integers(0, 8, rows)
    colours = np.array([[0, *random.permutation(np.arange(1, 10))] for _ in range(rows)], np.uint8)
    tokens = drawings.tokens(grids, symmetries, colours, np.zeros(rows, np.uint16))
    for row in range(rows):
        turned = dihedral(colours[row][GRIDS[grids[row]]], int(symmetries[row]))
        assert np.array_equal(tokens[row], drawn_alone(turned, 0, 0))
