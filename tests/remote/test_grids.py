import numpy as np
import pytest

from remote.dataset.grids import dihedral, parse_grid
from remote.evaluators.originals import grid_sizes
from tests.remote.drawn import drawn_alone

random = np.random.Generator(np.random.Philox(1))
GRIDS = [
    random.integers(0, 10, size).astype(np.uint8)
    for size in [(1, 1), (3, 7), (30, 30), (30, 4), (5, 30), (29, 29), (12, 12)]
]


UPSTREAM_SYMMETRIES = [  # by their numbers
    lambda grid: grid,
    np.rot90,
    lambda grid: np.rot90(grid, 2),
    lambda grid: np.rot90(grid, 3),
    np.fliplr,
    np.flipud,
    np.transpose,
    lambda grid: np.fliplr(np.rot90(grid)),
]


@pytest.mark.parametrize("symmetry", range(8))
def test_symmetries_have_upstreams_numbers(symmetry: int) -> None:
    for grid in GRIDS:
        assert np.array_equal(dihedral(grid, symmetry), UPSTREAM_SYMMETRIES[symmetry](grid))


def test_an_untranslated_sequence_has_the_size_of_its_grid() -> None:
    tokens = np.stack([drawn_alone(grid, 0, 0) for grid in GRIDS])
    assert grid_sizes(tokens).tolist() == [list(grid.shape) for grid in GRIDS]


def test_a_sequence_without_colours_at_the_corner_has_no_grid() -> None:
    assert grid_sizes(np.zeros((1, 900), np.uint8)).tolist() == [[0, 0]]


def test_of_two_rectangles_of_equal_area_the_flatter_one_wins() -> None:
    canvas = np.zeros((30, 30), np.uint8)
    canvas[0, :4] = canvas[1, :2] = 5
    assert grid_sizes(canvas.reshape(1, 900)).tolist() == [[1, 4]]


def test_a_grid_larger_than_the_canvas_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 30x30"):
        parse_grid([[0] * 31])
