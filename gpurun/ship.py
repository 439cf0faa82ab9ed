"""The cargo onto a box: only what is not there yet travels, and what we no longer ship goes.

What is there is asked of the box's own files, not of a note: files that somebody edited, or that a
broken transfer left half, are sent again.  The note (`.gpurun/shipped`) only says what is ours to
remove.  Nothing on the box is needed but sh, tar, xargs and sha256sum.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote_from_bytes, unquote_to_bytes

from gpurun.bundle import Cargo, Item
from gpurun.errors import PhaseFailed
from gpurun.phases import KEEP
from gpurun.rsync import LARGE_BYTES, Rsync, RsyncFailed
from gpurun.shell import Shell
from gpurun.shell.lines import lines_of

LOOK_S = 120.0
UNPACK_S = 600.0
NOTE = f"{KEEP}/shipped"  # a line for each file: digest, kind, name in percent encoding

_DIGEST = re.compile(r"([0-9a-f]{64})  \./(.+)")

# Names come on stdin, so that none is a word of the command.
_LOOK = f"""\
mkdir -p {KEEP}
[ ! -f {NOTE} ] || sed 's/^/=/' {NOTE}
! command -v rsync >/dev/null || echo +rsync
xargs -0 sha256sum 2>/dev/null || :
"""
# A folder that this leaves empty goes too.
_REMOVE = """\
xargs -0 sh -c '
for name; do
  rm -f "$name" || continue
  folder=${name%/*}
  while [ "$folder" != . ] && rmdir "$folder" 2>/dev/null; do folder=${folder%/*}; done
done' sh
"""


@dataclass(frozen=True, slots=True)
class Brought:
    """What one call changed on the box."""

    files: int
    removed: int
    bytes: int  # as they travelled, compressed


@dataclass(frozen=True, slots=True)
class _There:
    """What lies on the box."""

    digests: dict[str, str]  # of files under names that a line of text can hold
    noted: dict[str, str]  # name -> digest and kind, as they were shipped
    rsync: bool

    def has(self, item: Item) -> bool:
        if self.noted.get(item.name) != _mark(item):
            return False
        return not _readable(item) or self.digests.get(item.name) == item.sha256


def bring(
    shell: Shell,
    cargo: Cargo,
    archive_dir: Path,
    log: Callable[[str], None] = lambda _line: None,
    rsync: Rsync | None = None,
) -> Brought:
    """Make the box hold this cargo, and prove that it does.

    `archive_dir` is a folder of ours for the archive, whose name depends on its contents: a
    transfer that was cut goes on where it stopped, also for another process.  With `rsync`, and
    where both sides have it, large files go that way.  PhaseFailed: a command on the box failed.
    OSError: the archive did not arrive.
    """
    before = _look(shell, cargo)
    missing = Cargo(tuple(item for item in cargo.files if not before.has(item)))
    gone = sorted(before.noted.keys() - {item.name for item in cargo.files})
    if not missing.files and not gone:
        log(f"all {len(cargo.files)} files are on the box already")
        return Brought(0, 0, 0)
    if gone:
        _do(shell, _REMOVE, "remove what is no longer shipped", stdin=_names(gone))
    count, rest = 0, missing
    if rsync is not None and before.rsync and Rsync.is_here():
        count, rest = _by_rsync(rsync, missing, log)
    if rest.files:
        count += _send(shell, rest, archive_dir)
    _note(shell, cargo)
    log(
        f"{len(missing.files)} of {len(cargo.files)} files sent ({count} bytes), "
        f"{len(gone)} removed"
    )
    after = _look(shell, cargo)
    if wrong := [item.name for item in cargo.files if not after.has(item)]:
        raise PhaseFailed(
            f"{len(wrong)} files are not on the box as they were sent ({wrong[0]!r} for one): "
            "is its disk full?"
        )
    return Brought(len(missing.files), len(gone), count)


def _look(shell: Shell, cargo: Cargo) -> _There:
    """One round trip."""
    asked = [item.name for item in cargo.files if _readable(item)]
    result, lines = lines_of(shell, _LOOK, timeout_s=LOOK_S, stdin=_names(asked))
    if not result.ok:
        raise PhaseFailed(f"the box cannot be asked what it holds: {result.tail(3)}")
    noted, digests = {}, {}
    for line in lines:
        if line.startswith("=") and len(words := line[1:].split(" ")) == 3:
            name = unquote_to_bytes(words[2]).decode(errors="surrogateescape")
            if _inside(name):
                noted[name] = f"{words[0]} {words[1]}"
        elif found := _DIGEST.fullmatch(line):
            digests[found[2]] = found[1]
    return _There(digests, noted, "+rsync" in lines)


def _by_rsync(rsync: Rsync, missing: Cargo, log: Callable[[str], None]) -> tuple[int, Cargo]:
    """Bytes that travelled, and what is left for the archive: all of it if rsync fails."""
    large = [item for item in missing.files if item.bytes >= LARGE_BYTES and not item.link]
    if not large:
        return 0, missing
    try:
        count = rsync.send(large)
    except RsyncFailed as error:
        log(f"rsync gave up ({error}); the archive takes its files")
        return 0, missing
    log(f"{len(large)} large files sent by rsync ({count} bytes)")
    return count, Cargo(tuple(item for item in missing.files if item not in large))


def _send(shell: Shell, missing: Cargo, archive_dir: Path) -> int:
    """Bytes that travelled."""
    archive_dir.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(os.fsencode(missing.manifest)).hexdigest()
    archive = archive_dir / f"ship-{digest[:16]}.tar.gz"
    target = f"{KEEP}/{archive.name}"
    missing.write_tar(archive)
    try:
        shell.put(archive, target)
        # -m: Python takes a file for unchanged that has the size and the time of its .pyc.
        _do(shell, f"tar -xzmf {target} && rm {target}", "unpack the bundle")
        return archive.stat().st_size
    finally:
        archive.unlink(missing_ok=True)


def _note(shell: Shell, cargo: Cargo) -> None:
    lines = "".join(f"{_mark(item)} {_encoded(item.name)}\n" for item in cargo.files)
    text = f"cat > {NOTE}.tmp && mv {NOTE}.tmp {NOTE}"
    _do(shell, text, "note what was shipped", stdin=lines)


def _do(shell: Shell, text: str, says: str, stdin: str = "") -> None:
    result = shell.run(text, timeout_s=UNPACK_S, stdin=stdin)
    if not result.ok:
        raise PhaseFailed(f"`{says}` exited {result.exited}: {result.tail(3)}")


def _mark(item: Item) -> str:
    if item.link:
        return f"{hashlib.sha256(item.link.encode(errors='surrogateescape')).hexdigest()} l"
    return f"{item.sha256} {'x' if item.executable else '-'}"


def _readable(item: Item) -> bool:
    """Whether sha256sum prints the name as it is; others are known by the note alone."""
    return not item.link and item.name.isprintable() and "\\" not in item.name


def _inside(name: str) -> bool:
    """Whether a name that the box gives is one that we may have shipped."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and not {"..", KEEP} & set(parts)


def _names(names: Iterable[str]) -> str:
    """A leading dash or a space makes no difference after "./"."""
    return "".join(f"./{name}\0" for name in names)


def _encoded(name: str) -> str:
    return quote_from_bytes(name.encode(errors="surrogateescape"))
