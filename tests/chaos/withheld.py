"""How long a hypervisor gave this machine's cores to others: nothing here could act meanwhile."""

import bisect
import os
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def withheld_s() -> float:
    """Of each core, since the machine started, while something waited to run there; always 0 where
    there is no hypervisor (proc(5), steal)."""
    total = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(total[8]) / TICKS_PER_S / (os.cpu_count() or 1)


class Withheld:
    """What was withheld by when, on any clock that does not go back."""

    def __init__(self) -> None:
        self._at_s: list[float] = []
        self._withheld_s: list[float] = []

    def note(self, at_s: float, so_far_s: float) -> None:
        self._at_s.append(at_s)
        self._withheld_s.append(so_far_s)

    def between_s(self, since_s: float, until_s: float) -> float:
        """By the notes that lie between."""
        first = bisect.bisect_left(self._at_s, since_s)
        end = bisect.bisect_right(self._at_s, until_s)
        inside = self._withheld_s[first:end]
        return inside[-1] - inside[0] if inside else 0.0
