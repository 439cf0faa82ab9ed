"""Files to and from a box, each over the channel of one command: whole, or not at all.

What arrives lies beside its target until it is all there.  A transfer that was cut goes on where
it stopped, in this call or in a later one, and is then compared by sha256: once more from zero if
it differs, for the file may be another one meanwhile.
"""

import errno
import fcntl
import hashlib
import os
import queue
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedRandom, BufferedReader
from pathlib import Path, PurePosixPath

from gpurun.shell.link import Link
from gpurun.shell.patience import Patience
from gpurun.shell.trouble import OutcomeUnknown

BLOCK_BYTES = 1 << 20
DIGEST_BYTES_PER_S = 50e6  # at least, on a box whose disk is busy

# How the box's commands exit when it is not 0.
MISSING, NOT_A_FILE, UNREADABLE, INCOMPLETE, RESUMED, DIFFERS = 66, 67, 68, 69, 70, 71
_REASONS = {
    MISSING: (errno.ENOENT, "no such file on the box"),
    NOT_A_FILE: (errno.EISDIR, "not a file on the box"),
    UNREADABLE: (errno.EACCES, "not readable on the box"),
}

_SEND = """\
f={path}
[ -e "$f" ] || exit 66; [ -f "$f" ] || exit 67; [ -r "$f" ] || exit 68
stat -Lc '%s %Y %a' "$f" && exec tail -c +{first} "$f" 2>/dev/null
"""
_RECEIVE = """\
f={path} p={part}
[ ! -d "$f" ] || exit 67
mkdir -p "${{p%/*}}" && : >>"$p" && have=$(stat -c %s "$p") || exit 1
[ "$have" -le {size} ] || {{ : >"$p"; have=0; }}
echo "$have"
cat >>"$p" || {{ rm -f "$p"; exit 1; }}
[ "$(stat -c %s "$p")" = {size} ] || exit 69
[ "$have" = 0 ] || exit 70
{publish}"""
_VERIFY = """\
f={path} p={part}
if command -v sha256sum >/dev/null && [ "$(sha256sum <"$p")" != "{digest}  -" ]
then rm -f "$p"; exit 71; fi
{publish}"""
_PUBLISH = """\
chmod {mode:o} "$p" && touch -d @{mtime_s} "$p" && mv -f "$p" "$f"
"""
_DIGEST = "command -v sha256sum >/dev/null || exit 0; exec sha256sum <{path}"


def put(link: Link, source: Path, target: str) -> None:
    """Copy a file onto the box, its mode and time too; OSError when it did not arrive."""
    path = PurePosixPath(link.login.root) / target
    with source.open("rb") as file:
        for _ in ("where it stopped", "from zero"):
            if _sent(Patience(link), file, path):
                return
    raise OSError(errno.EIO, "it arrived twice with another content", str(path))


def get(link: Link, source: str, target: Path) -> None:
    """Copy a file from the box to exactly `target`; OSError when it did not arrive.

    What has arrived by then waits beside `target` for the next call.
    """
    path = PurePosixPath(link.login.root) / source
    with _part_of(target) as (part, file):
        for _ in ("where it stopped", "from zero"):
            if facts := _received(Patience(link), path, file):
                file.flush()
                part.chmod(facts.mode & 0o777)
                os.utime(part, (facts.mtime_s, facts.mtime_s))
                part.replace(target)
                return
    raise OSError(errno.EIO, "it arrived twice with another content", str(path))


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the box says of a file before it sends it."""

    size: int
    mtime_s: int
    mode: int


def _received(patience: Patience, path: PurePosixPath, file: BufferedRandom) -> _Facts | None:
    """None: what came in pieces, or while it changed, is no file of the box; it is dropped."""
    in_pieces = file.seek(0, os.SEEK_END) > 0
    while True:
        arriving = _Arriving(file)
        text = _SEND.format(path=shlex.quote(str(path)), first=file.tell() + 1)
        code = patience.attempt(text, arriving.hear)
        if code in _REASONS:
            raise OSError(*_REASONS[code], str(path))
        if code == 0:
            break
        if code is not None:
            raise OSError(errno.EIO, "it could not be read to its end on the box", str(path))
        in_pieces = True
    facts = arriving.facts
    whole = facts is not None and file.tell() == facts.size
    if facts and whole and (not in_pieces or _same(patience, path, file)):
        return facts
    file.seek(0)
    file.truncate()
    return None


class _Arriving:
    """A line about the file, then its bytes."""

    def __init__(self, file: BufferedRandom) -> None:
        self.facts: _Facts | None = None
        self._file = file
        self._at = file.tell()
        self._line = b""

    def hear(self, data: bytes) -> None:
        if self.facts is None:
            line, newline, data = (self._line + data).partition(b"\n")
            self._line = line
            if not newline:
                return
            if not (said := re.fullmatch(rb"(\d{1,18}) (\d{1,18}) ([0-7]{1,4})", line)):
                raise OSError(errno.EIO, f"the box says {line[:200]!r} instead of a file's size")
            self.facts = _Facts(int(said[1]), int(said[2]), int(said[3], 8))
        if len(data) > self.facts.size - self._at:  # it has grown meanwhile
            data = data[: max(0, self.facts.size - self._at)]
        self._file.write(data)
        self._at += len(data)


def _same(patience: Patience, path: PurePosixPath, file: BufferedRandom) -> bool:
    """Whether the box's sha256 is ours; yes where it cannot tell."""
    silent_s = file.tell() / DIGEST_BYTES_PER_S
    while True:
        said = bytearray()
        text = _DIGEST.format(path=shlex.quote(str(path)))
        if patience.attempt(text, said.extend, silent_s=silent_s) is not None:
            return bytes(said[:64]).decode(errors="replace") in ("", _sha256(file))


def _sent(patience: Patience, file: BufferedReader, path: PurePosixPath) -> bool:
    """False: what arrived in pieces is not what `file` holds; it is removed there."""
    source = os.fstat(file.fileno())
    # Another version of the source has another part: nothing is sent onto its bytes.
    version = f"{path.name} {source.st_size} {source.st_mtime_ns}"
    names = {
        "path": shlex.quote(str(path)),
        "part": shlex.quote(str(path.with_name(_part_name(version)))),
        "publish": _PUBLISH.format(mode=source.st_mode & 0o777, mtime_s=int(source.st_mtime)),
    }
    receive = _RECEIVE.format(size=source.st_size, **names)
    while (code := _pushed(patience, receive, file, path)) is None:
        pass
    if code == RESUMED:
        verify = _VERIFY.format(digest=_sha256(file), **names)
        silent_s = source.st_size / DIGEST_BYTES_PER_S
        while (code := _told(patience, verify, path, silent_s)) is None:
            pass
    return code == 0


def _pushed(
    patience: Patience, command: str, file: BufferedReader, path: PurePosixPath
) -> int | None:
    """One attempt to send what the box lacks: 0, RESUMED, or None for another one."""
    offset: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    line = bytearray()

    def hear(data: bytes) -> None:
        begun = b"\n" in line
        line.extend(data)
        if not begun and b"\n" in line:
            had = bytes(line).partition(b"\n")[0]
            offset.put(int(had) if had.isdigit() else None)

    try:
        code = patience.attempt(command, hear, _blocks(file, offset))
    finally:
        offset.put(None)  # for the thread that sends, if it still waits
    if code == INCOMPLETE:
        patience.bear(OutcomeUnknown("bytes were lost on their way"))
        return None
    return _checked(code, line, path)


def _told(patience: Patience, command: str, path: PurePosixPath, silent_s: float) -> int | None:
    line = bytearray()
    return _checked(patience.attempt(command, line.extend, silent_s=silent_s), line, path)


def _checked(code: int | None, said: bytearray, path: PurePosixPath) -> int | None:
    """OSError for what another attempt cannot cure."""
    if code in (None, 0, RESUMED, DIFFERS):
        return code
    if code in _REASONS:
        raise OSError(*_REASONS[code], str(path))
    last = said.decode(errors="replace").strip().rpartition("\n")[2]
    raise OSError(errno.EIO, f"it could not be written on the box: {last}", str(path))


def _blocks(file: BufferedReader, offset: "queue.SimpleQueue[int | None]") -> Iterator[bytes]:
    """The file from the offset on, as long as it was when it was opened."""
    size, at = os.fstat(file.fileno()).st_size, offset.get()
    if at is None:
        return
    file.seek(at)
    while at < size:
        if not (block := file.read(min(BLOCK_BYTES, size - at))):
            raise OSError(errno.EIO, "the file became shorter while it was sent", file.name)
        at += len(block)
        yield block


def _sha256(file: BufferedReader | BufferedRandom) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


def _part_name(of: str) -> str:
    return f".{hashlib.sha256(os.fsencode(of)).hexdigest()[:16]}.part"


@contextmanager
def _part_of(target: Path) -> Iterator[tuple[Path, BufferedRandom]]:
    """The file beside `target` that grows to become it; one process at a time has it.

    An empty one does not stay.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(_part_name(target.name))
    with _alone(part) as file:
        try:
            yield part, file
        finally:
            if file.seek(0, os.SEEK_END) == 0:
                part.unlink(missing_ok=True)


def _alone(part: Path) -> BufferedRandom:
    while True:
        file = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise OSError(errno.EBUSY, "another process fetches it", str(part)) from error
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), part.stat()):
                return file
        file.close()  # whoever had it has finished: it became the target
