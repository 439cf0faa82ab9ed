"""Grids drawn as tokens, any of them in any symmetry, colours and place, many at once.

Every grid is drawn once in each symmetry, at the corner of its canvas, with codes for tokens.
Moving it by (row, column) shifts its sequence by 30 * row + column, so a sequence is a window of
900 codes that begins that much earlier, looked up in the augmentation's own table of tokens.  That
is two copies per sequence, whatever the augmentation: fast enough to be done while training.
"""

import numpy as np

from remote.dataset.grids import EOS, FIRST_COLOUR, SEQ_LEN, SIDE, Grid, dihedral

# In drawings only.  EOS right of a grid is there only if it fits, which depends on the shift.
EOS_RIGHT = FIRST_COLOUR + 10
CODES = EOS_RIGHT + 1

ROWS_AT_ONCE = 256  # what stays in a core's cache from one copy to the next


class Drawings:
    def __init__(self, grids: list[Grid]) -> None:
        turned = [[dihedral(grid, symmetry) for symmetry in range(8)] for grid in grids]
        heights, widths = np.array([[grid.shape for grid in row] for row in turned]).T
        self._widths = widths.T  # int [grids, 8]
        drawn = np.minimum(SIDE * (heights.T + 1), SEQ_LEN).reshape(-1)  # codes of each drawing
        # As much PAD before each drawing as its own shifts and its predecessor's window reach.
        before = np.maximum(SEQ_LEN + 2 * SIDE - drawn, SEQ_LEN - np.roll(drawn, 1))
        starts = np.cumsum(before + drawn) - drawn
        codes = np.zeros(int(starts[-1]) + SEQ_LEN, np.uint8)
        self._starts = starts.reshape(-1, 8)
        for row, row_starts in zip(turned, self._starts.tolist(), strict=True):
            for grid, start in zip(row, row_starts, strict=True):
                _draw(grid, codes[start : start + SEQ_LEN].reshape(SIDE, SIDE))
        # Windows of 900 codes, one for each place to begin at.
        self._windows = np.lib.stride_tricks.sliding_window_view(codes, SEQ_LEN)

    def tokens(
        self, grids: np.ndarray, symmetries: np.ndarray, colours: np.ndarray, shifts: np.ndarray
    ) -> np.ndarray:
        """uint8 [N, 900] of grids by number [N], symmetries [N], colour maps [N, 10], shifts [N].

        A shift is 30 * row + column, with row and column such that the turned grid fits.
        """
        drawn = np.empty((len(grids), SEQ_LEN), np.uint8)
        for start in range(0, len(grids), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            self._look_up(grids[rows], symmetries[rows], colours[rows], shifts[rows], drawn[rows])
        return drawn

    def _look_up(
        self,
        grids: np.ndarray,
        symmetries: np.ndarray,
        colours: np.ndarray,
        shifts: np.ndarray,
        into: np.ndarray,
    ) -> None:
        shifts = shifts.astype(np.int64)
        table = np.zeros((len(grids), CODES), np.uint8)
        table[:, EOS] = EOS
        table[:, FIRST_COLOUR:EOS_RIGHT] = colours + np.uint8(FIRST_COLOUR)
        table[:, EOS_RIGHT] = shifts % SIDE + self._widths[grids, symmetries] < SIDE
        codes = self._windows[self._starts[grids, symmetries] - shifts]
        entries = codes + np.arange(0, table.size, CODES, dtype=np.int32)[:, None]
        # Never out of range; to clip costs less than to look.
        table.reshape(-1).take(entries, mode="clip", out=into)


def _draw(grid: Grid, canvas: np.ndarray) -> None:
    height, width = grid.shape
    canvas[:height, :width] = grid + np.uint8(FIRST_COLOUR)
    canvas[height : height + 1, :width] = EOS
    canvas[:height, width : width + 1] = EOS_RIGHT
