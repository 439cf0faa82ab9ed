"""The form of a grid as tokens, as plainly as can be: what the fast ways are held against."""

import numpy as np


def drawn_alone(grid: np.ndarray, row: int, column: int) -> np.ndarray:
    canvas = np.zeros((30, 30), np.uint8)
    height, width = grid.shape
    canvas[row : row + height, column : column + width] = grid + 2
    if row + height < 30:
        canvas[row + height, column : column + width] = 1
    if column + width < 30:
        canvas[row : row + height, column + width] = 1
    return canvas.reshape(-1)
