"""What a command says: text, told line by line as it comes, its end kept."""

import codecs
import io
from collections import deque
from collections.abc import Callable

from gpurun.shell import KEPT_CHARS

LONGEST_LINE = 65_536  # characters; a longer one is told in parts


class Transcript:
    """Bytes in; lines and text out.  UTF-8, undecodable bytes replaced; `\\r` ends a line too."""

    def __init__(self, on_line: Callable[[str], None] | None = None) -> None:
        self._on_line = on_line
        self._decoder = io.IncrementalNewlineDecoder(
            codecs.getincrementaldecoder("utf-8")("replace"), translate=True
        )
        self._kept: deque[str] = deque()
        self._kept_chars = 0
        self._line = ""

    def take(self, data: bytes) -> None:
        """Hear more; what `on_line` raises is passed on."""
        self._take(self._decoder.decode(data))

    def finish(self) -> None:
        """Nothing more comes: tell the line that has no end."""
        self._take(self._decoder.decode(b"", final=True))
        if self._line:
            self._tell(self._line)

    def text(self) -> str:
        """The last KEPT_CHARS characters of it all."""
        return "".join(self._kept)[-KEPT_CHARS:]

    def _take(self, text: str) -> None:
        self._kept.append(text)
        self._kept_chars += len(text)
        while self._kept_chars - len(self._kept[0]) >= KEPT_CHARS:
            self._kept_chars -= len(self._kept.popleft())
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._tell(line)
        if len(self._line) > LONGEST_LINE:
            self._tell(self._line)
            self._line = ""

    def _tell(self, line: str) -> None:
        if self._on_line is not None:
            self._on_line(line)
