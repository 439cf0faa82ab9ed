"""The black box: what is armed, until when, by which id, in plain lines beside the database.

A locked, corrupt, full, restored or newer database all raise the same question, and this file
answers it.  One line is one `write`, then fsync; a torn or bad line is skipped.  The first line
names the owner and the machine, so that a copied directory is seen for what it is.
"""

import fcntl
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from urllib.parse import quote, unquote

from gpurun.clock import SystemClock
from gpurun.model import SETTLED

HEADER = "gpurun-timers-1"
KILLING = "killing"  # a state of no attempt: a person has ended it, and the journal took no word
LOCK_TRIES = 200
LOCK_TRY_S = 0.01


@dataclass(frozen=True, slots=True)
class Entry:
    """One label's timer as last agreed: enough to end its box without a database."""

    seq: int
    label: str
    provider: str
    account: str
    instance_id: str | None
    usd_per_hour: Decimal
    fires_at: datetime
    ends_at: datetime
    ceiling_at: datetime
    state: str  # of the attempt, as in model.AttemptState; or KILLING

    @property
    def settled(self) -> bool:
        """Nothing bills any more: gone, refused or expired."""
        return self.state in SETTLED

    def with_state(self, state: str) -> "Entry":
        return replace(self, state=state)


def read_entries(path: Path) -> dict[str, Entry]:
    """The entry in force of each label; {} without a file.  Takes no lock, writes nothing."""
    return _in_force(_entries(path))


def killed_labels(path: Path) -> frozenset[str]:
    """Those that a person has ended while the journal could not be told, whatever came then."""
    # Asked at every end of a run, of which a thousand may come at once: no other line is parsed.
    return _killed(
        entry for line in _lines(path) if f" {KILLING} " in line and (entry := _parsed(line))
    )


def _killed(entries: Iterable[Entry]) -> frozenset[str]:
    return frozenset(entry.label for entry in entries if entry.state == KILLING)


def _entries(path: Path) -> list[Entry]:
    return [entry for line in _lines(path) if (entry := _parsed(line))]


def _in_force(entries: Iterable[Entry]) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for entry in entries:
        if entry.label not in found or entry.seq >= found[entry.label].seq:
            found[entry.label] = entry
    return found


class BlackBox:
    """`timers.log` of one state directory.  Writing raises OSError; reading skips what is bad."""

    def __init__(self, path: Path, owner_id: str, machine: str) -> None:
        self.path = path
        self._owner = (owner_id, machine)
        self._seen: tuple[int, int, int] | None = None
        self._entries: dict[str, Entry] = {}
        self._killed: frozenset[str] = frozenset()

    def read(self) -> dict[str, Entry]:
        """The entry in force of each label; parsed again only when the file has changed."""
        self._look()
        return dict(self._entries)

    def killed(self) -> frozenset[str]:
        """As `killed_labels`; parsed again only when the file has changed."""
        self._look()
        return self._killed

    def _look(self) -> None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            self._seen, self._entries, self._killed = None, {}, frozenset()
            return
        seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        if seen != self._seen:
            # What is appended meanwhile makes the next look another one.
            entries = _entries(self.path)
            self._entries, self._killed, self._seen = _in_force(entries), _killed(entries), seen

    def header(self) -> tuple[str, str] | None:
        """Owner id and machine hash of whoever began the file, whatever this process is."""
        return next((owner for line in _lines(self.path) if (owner := _owner(line))), None)

    def append(self, entry: Entry) -> None:
        """Returns when the line is on the disk.  Waits at most 2 s for another writer."""
        with self._locked():
            new = not self.path.exists()
            headed = self.header() is not None
            handle = os.open(
                self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, mode=0o600
            )
            try:
                if not headed:
                    _write(handle, _header(self._owner))
                _write(handle, _line(entry))
                os.fsync(handle)
            finally:
                os.close(handle)
            if new:
                _sync(self.path.parent)

    def compact(self, live: Callable[[Entry], bool]) -> None:
        """Keep what is in force and live; the old file stands until the new one is on the disk."""
        with self._locked():
            entries = [entry for entry in self.read().values() if live(entry)]
            self._replace(self.header() or self._owner, entries)

    def adopt(self) -> None:
        """Put this owner and machine in the header: `gpurun keeper adopt` of a copied directory."""
        with self._locked():
            self._replace(self._owner, list(self.read().values()))

    def _replace(self, owner: tuple[str, str], entries: list[Entry]) -> None:
        new = self.path.with_name(self.path.name + ".new")
        handle = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode=0o600)
        try:
            for line in (_header(owner), *map(_line, entries)):
                _write(handle, line)
            os.fsync(handle)
        finally:
            os.close(handle)
        new.replace(self.path)
        _sync(self.path.parent)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A line appended between a compaction's read and its rename would be lost.  The wait is
        # bounded, because a stopped process keeps its lock and ending a box must not hang on it.
        lock = self.path.with_name(self.path.name + ".lock")
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode=0o600)
        try:
            _lock(handle, lock)
            yield
        finally:
            os.close(handle)


def _lock(handle: int, lock: Path) -> None:
    clock = SystemClock()
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            clock.sleep(LOCK_TRY_S)
    raise TimeoutError(f"{lock}: another gpurun process holds it")


def _write(handle: int, line: str) -> None:
    # A torn line before this one must not swallow it.
    size = os.fstat(handle).st_size
    torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
    data = ("\n" * torn + line + "\n").encode()
    written = os.write(handle, data)
    if written != len(data):
        raise OSError(f"the black box took {written} of {len(data)} bytes: is the disk full?")


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode("ascii", "replace").split("\n")
    except FileNotFoundError:
        return []


def _header(owner: tuple[str, str]) -> str:
    return _sealed(HEADER, *map(_word, owner))


def _owner(line: str) -> tuple[str, str] | None:
    words = line.split(" ")
    if len(words) != 4 or words[0] != HEADER:
        return None
    owner = (_text(words[1]), _text(words[2]))
    return owner if _header(owner) == line else None


def _line(entry: Entry) -> str:
    return _sealed(
        str(entry.seq),
        _word(entry.label),
        _word(entry.provider),
        _word(entry.account),
        "-" if entry.instance_id is None else _word(entry.instance_id),
        format(entry.usd_per_hour, "f"),
        *(_time(moment) for moment in (entry.fires_at, entry.ends_at, entry.ceiling_at)),
        _word(entry.state),
    )


def _parsed(line: str) -> Entry | None:
    words = line.split(" ")
    if len(words) != 11:
        return None
    try:
        entry = Entry(
            seq=int(words[0]),
            label=_text(words[1]),
            provider=_text(words[2]),
            account=_text(words[3]),
            instance_id=None if words[4] == "-" else _text(words[4]),
            usd_per_hour=Decimal(words[5]),
            fires_at=datetime.fromisoformat(words[6]),
            ends_at=datetime.fromisoformat(words[7]),
            ceiling_at=datetime.fromisoformat(words[8]),
            state=_text(words[9]),
        )
        return entry if _line(entry) == line else None
    except (ValueError, InvalidOperation, OverflowError):
        return None


def _sealed(*words: str) -> str:
    body = " ".join(words)
    return f"{body} {zlib.crc32(body.encode()):08x}"


def _word(text: str) -> str:
    """Text without a space; "-" stays free to mean none."""
    word = quote(text, safe=":/@+=,", errors="surrogatepass")
    return {"": "%", "-": "%2D"}.get(word, word)


def _text(word: str) -> str:
    return "" if word == "%" else unquote(word, errors="surrogatepass")


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds")
