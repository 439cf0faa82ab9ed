import numpy as np
import pytest

from remote.dataset.augment import Group
from remote.dataset.encode import draw_offsets, encode
from remote.dataset.grids import (
    augmented_name,
    crop,
    crop_sizes,
    dihedral,
    parse_grid,
    parse_name,
    undo_augmentation,
)
from remote.dataset.legacy_random import LegacyRandom

random = np.random.Generator(np.random.Philox(1))
GRIDS = [
    random.integers(0, 10, size).astype(np.uint8)
    for size in [(1, 1), (3, 7), (30, 30), (30, 4), (5, 30), (29, 29), (12, 12)]
]


@pytest.mark.parametrize("symmetry", range(8))
def test_undoing_an_augmentation_gives_the_grid_back(symmetry: int) -> None:
    colours = [0, *random.permutation(np.arange(1, 10)).tolist()]
    name, found, undo = parse_name(augmented_name("p", symmetry, "".join(map(str, colours))))
    assert (name, found) == ("p", symmetry)
    for grid in GRIDS:
        augmented = dihedral(np.array(colours, np.uint8)[grid], symmetry)
        assert (undo_augmentation(augmented, symmetry, undo) == grid).all()


def test_cropping_an_untranslated_sequence_gives_the_grid_back() -> None:
    tokens = np.stack([_naive(grid, 0, 0) for grid in GRIDS])
    for grid, sequence, size in zip(GRIDS, tokens, crop_sizes(tokens), strict=True):
        assert (crop(sequence, size) == grid).all()


def test_a_sequence_without_colours_at_the_corner_crops_to_nothing() -> None:
    assert crop_sizes(np.zeros((1, 900), np.uint8)).tolist() == [[0, 0]]


def test_of_two_rectangles_of_equal_area_the_flatter_one_wins() -> None:
    canvas = np.zeros((30, 30), np.uint8)
    canvas[0, :4] = canvas[1, :2] = 5
    assert crop_sizes(canvas.reshape(1, 900)).tolist() == [[1, 4]]


@pytest.mark.parametrize("translate", [True, False])
def test_encoding_a_group_at_once_is_encoding_each_grid_alone(translate: bool) -> None:
    rows = 40
    colours = np.array([[0, *random.permutation(np.arange(1, 10))] for _ in range(rows)], np.uint8)
    symmetries = random.integers(0, 8, rows).astype(np.uint8)
    pairs = list(zip(GRIDS, reversed(GRIDS), strict=True))
    group = Group("p", {"train": pairs}, symmetries, colours)
    offsets = draw_offsets(group, pairs, LegacyRandom(5), translate=translate)
    assert offsets.any() == translate
    encoded = encode(group, [pair[0] for pair in pairs], offsets).reshape(rows, len(pairs), 900)
    for row in range(rows):
        for index, grid in enumerate(GRIDS):
            moved = dihedral(colours[row][grid], symmetries[row])
            assert (encoded[row, index] == _naive(moved, *offsets[row, index].tolist())).all()


def test_a_grid_larger_than_the_canvas_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 30x30"):
        parse_grid([[0] * 31])


def _naive(grid: np.ndarray, row: int, column: int) -> np.ndarray:
    canvas = np.zeros((30, 30), np.uint8)
    height, width = grid.shape
    canvas[row : row + height, column : column + width] = grid + 2
    if row + height < 30:
        canvas[row + height, column : column + width] = 1
    if column + width < 30:
        canvas[row : row + height, column + width] = 1
    return canvas.reshape(-1)
