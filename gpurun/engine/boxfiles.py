"""Files of a box: which match, their digests, and fetching them whole or not at all.

What is small travels packed: over a line of 100 ms a file by itself costs half a second.
"""

import hashlib
import json
import os
import shlex
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpurun.errors import PhaseFailed
from gpurun.phases import KEEP
from gpurun.shell import UNKNOWN_OUTCOME, Shell

LIST_S = 600.0
LIST_TRIES = 3
SMALL_BYTES = 1 << 20
BATCH_BYTES = 32 << 20
BATCH_FILES = 2000

# These run on the box with nothing but the standard library.
# A link is followed only to what lies inside the box's root, and each file is listed once.
_LISTING = """
import glob, json, os, sys
root, seen, rows = os.path.realpath("."), {}, 0
for pattern in sys.argv[1:]:
    for path in glob.glob(pattern, recursive=True):
        inside = [os.path.join(d, f) for d, _, fs in os.walk(path) for f in fs]
        for name in inside if os.path.isdir(path) else [path]:
            real = os.path.realpath(name)
            if real.startswith(root + os.sep) and not name.endswith((".tmp", ".part")):
                seen.setdefault(real, os.path.normpath(name))
for real, path in sorted(seen.items(), key=lambda item: item[1]):
    try:
        info = os.stat(real)
    except OSError:
        continue
    if os.path.isfile(real):
        print(json.dumps([path, info.st_size, info.st_mtime_ns, ""]))
        rows += 1
print(json.dumps({"rows": rows}))
"""
_DIGEST = """
import hashlib, json, os, sys
rows = 0
for path in json.load(sys.stdin):
    sha = hashlib.sha256()
    try:
        info = os.stat(path)
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                sha.update(block)
    except OSError:
        continue
    print(json.dumps([path, info.st_size, info.st_mtime_ns, sha.hexdigest()]))
    rows += 1
print(json.dumps({"rows": rows}))
"""
_PACK = f"""
import hashlib, io, json, os, sys, tarfile
rows = 0
with tarfile.open("{KEEP}/batch.tar", "w") as tar:
    for path in json.load(sys.stdin):
        try:
            info = os.stat(path)
            with open(path, "rb") as file:
                data = file.read({BATCH_BYTES})
        except OSError:
            continue
        member = tarfile.TarInfo(str(rows))
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
        print(json.dumps([path, len(data), info.st_mtime_ns, hashlib.sha256(data).hexdigest()]))
        rows += 1
print(json.dumps({{"rows": rows}}))
"""


@dataclass(frozen=True, slots=True)
class BoxFile:
    """A file of the box; its path is relative to the box's root."""

    path: str
    size_bytes: int
    mtime_ns: int
    sha256: str  # empty where it was only listed


def matching(shell: Shell, globs: Sequence[str]) -> list[BoxFile]:
    """The files under these globs; a folder means all that is in it."""
    return _rows(shell, _LISTING, globs, f"list {', '.join(globs)}")


def fetch(
    shell: Shell,
    globs: Sequence[str],
    into: Path,
    known: Sequence[BoxFile] = (),
) -> tuple[list[BoxFile], list[str]]:
    """All that matches and is here now, the newest first; and what could not be fetched.

    What is `known` from an earlier fetch, and has not changed on the box since, is neither read
    there nor fetched again.  A good local file is never replaced by a broken one: each arrives
    beside it and is renamed.  What is here is noted on the box, so that a guard may remove it
    there.
    """
    had = {(file.path, file.size_bytes, file.mtime_ns): file for file in known}
    here, new, failed = list[BoxFile](), list[BoxFile](), list[str]()
    for file in sorted(matching(shell, globs), key=lambda one: -one.mtime_ns):
        same = had.get((file.path, file.size_bytes, file.mtime_ns))
        if same is not None and (into / file.path).is_file():
            here.append(same)
        else:
            new.append(file)
    for batch in _batches(new):
        # One that moves or vanishes stops no other.
        came, why = _fetch_batch(shell, batch, into)
        here += came
        failed += why
        _note(shell, here)
    return here, failed


def _batches(files: Sequence[BoxFile]) -> Iterator[list[BoxFile]]:
    """The newest first; small ones together, a large one by itself."""
    batch: list[BoxFile] = []
    for file in files:
        full = len(batch) >= BATCH_FILES or sum(f.size_bytes for f in batch) >= BATCH_BYTES // 2
        if batch and (full or file.size_bytes > SMALL_BYTES):
            yield batch
            batch = []
        batch.append(file)
        if file.size_bytes > SMALL_BYTES:
            yield batch
            batch = []
    if batch:
        yield batch


def _fetch_batch(
    shell: Shell, batch: Sequence[BoxFile], into: Path
) -> tuple[list[BoxFile], list[str]]:
    large, asked = batch[0].size_bytes > SMALL_BYTES, {file.path for file in batch}
    try:
        wanted = json.dumps([file.path for file in batch])
        script = _DIGEST if large else _PACK
        told = _rows(shell, script, (), f"read {batch[0].path}", wanted)
        rows = [file for file in told if file.path in asked]
        if not large:
            return _unpack(shell, rows, into)
    except (PhaseFailed, OSError) as error:
        return [], [f"{file.path} was not fetched: {error}" for file in batch]
    came, failed = list[BoxFile](), list[str]()
    for file in rows:
        try:
            _fetch_one(shell, file, into / file.path)
            came.append(file)
        except (PhaseFailed, OSError) as error:
            failed.append(f"{file.path} was not fetched: {error}")
    return came, failed


def _unpack(shell: Shell, rows: Sequence[BoxFile], into: Path) -> tuple[list[BoxFile], list[str]]:
    """What was packed on the box, each file checked against the digest told of it."""
    came, failed = list[BoxFile](), list[str]()
    into.mkdir(parents=True, exist_ok=True)
    archive = into / ".batch.part"
    try:
        shell.get(f"{KEEP}/batch.tar", archive)
        with tarfile.open(archive) as tar:
            for index, file in enumerate(rows):
                try:
                    member = tar.extractfile(str(index))
                    data = member.read(BATCH_BYTES + 1) if member is not None else b""
                    _keep(data, file, into / file.path)
                    came.append(file)
                except (PhaseFailed, OSError, KeyError) as error:
                    failed.append(f"{file.path} was not fetched: {error}")
    except tarfile.TarError as error:
        failed.append(f"{len(rows)} files were not fetched: their archive is broken: {error}")
    finally:
        archive.unlink(missing_ok=True)
    return came, failed


def _keep(data: bytes, file: BoxFile, target: Path) -> None:
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise PhaseFailed("what arrived is not what the box has")
    if target.is_file() and _sha256(target) == file.sha256:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = _part_of(target)
    part.write_bytes(data)
    os.utime(part, ns=(file.mtime_ns, file.mtime_ns))
    part.replace(target)


def _fetch_one(shell: Shell, file: BoxFile, target: Path) -> None:
    if target.is_file() and _sha256(target) == file.sha256:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = _part_of(target)
    shell.get(file.path, part)
    if (got := _sha256(part)) != file.sha256:
        raise PhaseFailed(
            f"it arrived with digest {got[:12]}, the box has {file.sha256[:12]}; what came is "
            f"kept as {part}"
        )
    part.replace(target)


def _part_of(target: Path) -> Path:
    return target.with_name(f".{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]}.part")


def _rows(
    shell: Shell, script: str, words: Sequence[str], what: str, stdin: str = ""
) -> list[BoxFile]:
    """What a script prints, row by row, and all of it; PhaseFailed says what could not be done."""
    python = "$([ -x venv/bin/python ] && echo venv/bin/python || echo python3)"
    command = f"mkdir -p {KEEP}; {python} -c {shlex.quote(script)} {shlex.join(words)}"
    for _ in range(LIST_TRIES):
        lines: list[str] = []  # not the result's output: of a long list that keeps only the end
        result = shell.run(command, timeout_s=LIST_S, stdin=stdin, on_line=lines.append)
        if result.exited != UNKNOWN_OUTCOME:
            break
    rows = [_row(line) for line in lines if line.startswith("[")]
    last = lines[-1].strip() if lines else ""
    if not result.ok or last != json.dumps({"rows": len(rows)}):
        raise PhaseFailed(f"cannot {what} on the box: {result.tail(3)}")
    return rows


def _row(line: str) -> BoxFile:
    """A row of the listing; what a box says must not make us write outside of the run's folder."""
    try:
        path, size_bytes, mtime_ns, sha256 = json.loads(line)
        file = BoxFile(str(path), int(size_bytes), int(mtime_ns), str(sha256))
    except (ValueError, TypeError, RecursionError) as error:
        raise PhaseFailed(f"the box's list of files makes no sense: {line[:200]!r}") from error
    parts = PurePosixPath(file.path).parts
    if not parts or file.path.startswith("/") or ".." in parts or "\0" in file.path:
        raise PhaseFailed(f"the box names a file outside of its root: {file.path!r}")
    return file


def _note(shell: Shell, files: Sequence[BoxFile]) -> None:
    named = [file for file in files if "\n" not in file.path]  # the note has a line for each
    lines = "".join(f"{file.mtime_ns} {file.size_bytes} {file.path}\n" for file in named)
    name = f"{KEEP}/collected.txt"
    shell.run(f"mkdir -p {KEEP}; cat > {name}.tmp; mv {name}.tmp {name}", timeout_s=30, stdin=lines)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
