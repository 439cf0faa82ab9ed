"""The metrics files of a training, followed by offset: no line is missed or heard twice."""

import base64
import binascii
import shlex
from collections.abc import Sequence
from typing import Any

from gpurun.engine.watch.said import from_json

PIECE_BYTES = 256 * 1024  # of one file in one look
MOST_FILES = 16
MOST_KEPT, LONGEST_PATH = 64, 500


class Followed:
    """The files that match a glob on the box; `kept` is what another watcher has kept of them.

    A file seen for the first time is read from near its end; one that shrank, from its start.
    """

    def __init__(self, glob: str, kept: object = None) -> None:
        self.behind = False  # whether there is more than the last look could bring
        self._glob = glob
        self._offsets: dict[str, int] = {}
        if isinstance(kept, dict):
            self._offsets = {str(name): at for name, at in kept.items() if isinstance(at, int)}

    def text(self) -> str:
        """sh text: of each file with news a line: size, offset, path and bytes, both in base64."""
        known = "".join(f"{shlex.quote(name)}) from={at};;\n" for name, at in self._offsets.items())
        return (
            f"n=0; for f in {unquoted_glob(self._glob)}; do\n"
            f'[ -f "$f" ] || continue; n=$((n + 1)); [ $n -le {MOST_FILES} ] || break\n'
            f'from=-1; case "$f" in\n{known}esac\n'
            'size=$(($(wc -c < "$f"))); [ $from -le $size ] || from=0\n'
            "if [ $from -lt 0 ]; then from=0\n"
            f"[ $size -le {PIECE_BYTES} ] || from=$((size - {PIECE_BYTES})); fi\n"
            "[ $from -lt $size ] || continue\n"
            "echo $size $from $(printf %s \"$f\" | base64 | tr -d '\\n')"
            f" $(tail -c +$((from + 1)) \"$f\" | head -c {PIECE_BYTES} | base64 | tr -d '\\n')\n"
            "done"
        )

    def hear(self, lines: Sequence[str]) -> list[dict[str, Any]]:
        """What `text` printed: the new lines of all files."""
        said: list[dict[str, Any]] = []
        self.behind = False
        for line in lines[:MOST_FILES]:
            words = line.split(" ")
            if len(words) != 4 or not all(w.isdecimal() and len(w) < 18 for w in words[:2]):
                continue
            try:
                name = base64.b64decode(words[2], validate=True).decode()
                data = base64.b64decode(words[3], validate=True)
            except (binascii.Error, ValueError):
                continue
            said += self._take(name, data, int(words[0]), int(words[1]))
        return said

    def kept(self) -> dict[str, int]:
        return dict(self._offsets)

    def _take(self, name: str, data: bytes, size: int, offset: int) -> list[dict[str, Any]]:
        """Its whole lines; an unfinished one is read again, unless it is finished after all."""
        whole, _, rest = data.rpartition(b"\n")
        lines = from_json(whole.decode(errors="replace").split("\n"))
        last = from_json([rest.decode(errors="replace")])
        heard_to = offset + len(data)
        self.behind = self.behind or heard_to < size
        if not last and len(rest) < PIECE_BYTES:
            heard_to -= len(rest)
        if len(name) <= LONGEST_PATH:
            self._offsets.pop(name, None)
            self._offsets[name] = heard_to
            while len(self._offsets) > MOST_KEPT:
                del self._offsets[next(iter(self._offsets))]
        return lines + last


def unquoted_glob(glob: str) -> str:
    """A glob for the box's shell, everything but the wildcards quoted."""
    return "".join(c if c in "*?/" else shlex.quote(c) for c in glob)
