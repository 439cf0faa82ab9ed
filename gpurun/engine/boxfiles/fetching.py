"""Fetching files of a box whole or not at all; what is small travels packed.

Over a line of 100 ms a file by itself costs half a second.
"""

import hashlib
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpurun.engine.boxfiles.listing import (
    DIGEST,
    MOST_PACKED_BYTES,
    PACK,
    BoxFile,
    matching,
    rows_of,
)
from gpurun.errors import PhaseFailed
from gpurun.phases import KEEP
from gpurun.shell import UNKNOWN_OUTCOME, Shell
from gpurun.shell.trouble import HostKeyChanged

ANSWER_S = 20.0
SMALL_BYTES = 1 << 20
BATCH_BYTES = 16 << 20
BATCH_FILES = 2000
REMOVE_S = 15.0


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
    had = {file.version: file for file in known}
    here, new = list[BoxFile](), list[BoxFile]()
    for file in matching(shell, globs):
        same = had.get(file.version)
        if same is not None and (into / file.path).is_file():
            here.append(same)
        else:
            new.append(file)
    came, failed = fetch_these(shell, new, into, had=here)
    return [*here, *came], failed


def fetch_these(
    shell: Shell,
    files: Sequence[BoxFile],
    into: Path,
    *,
    had: Sequence[BoxFile] = (),
    who: str = "",
    stop: Callable[[], bool] = lambda: False,
) -> tuple[list[BoxFile], list[str]]:
    """These files, the newest first; and what could not be fetched.

    Two that fetch the same files at the same time must have different names, `who`.
    """
    here, failed = list[BoxFile](), list[str]()
    for batch in _batches(sorted(files, key=lambda one: -one.mtime_ns)):
        if stop():
            break
        # One that moves or vanishes stops no other.
        came, why = _fetch_batch(shell, batch, into, who)
        here += came
        failed += why
        if why and not came and _unreachable(shell):
            break
        _note(shell, [*had, *here])
    return here, failed


def _unreachable(shell: Shell) -> bool:
    """A box that does not answer is not asked for each of its files."""
    return shell.run("true", timeout_s=ANSWER_S).exited == UNKNOWN_OUTCOME


def newest(files: Sequence[BoxFile]) -> list[BoxFile]:
    """The last of each path."""
    return list({file.path: file for file in files}.values())


def documents(files: Sequence[BoxFile], into: Path) -> list[dict[str, object]]:
    """For the journal: where each lies here, its size and digest."""
    return [
        {"path": str(into / file.path), "bytes": file.size_bytes, "sha256": file.sha256}
        for file in files
    ]


def _batches(files: Sequence[BoxFile]) -> Iterator[list[BoxFile]]:
    """The newest first; small ones together, a large one by itself."""
    batch: list[BoxFile] = []
    for file in files:
        full = len(batch) >= BATCH_FILES or sum(f.size_bytes for f in batch) >= BATCH_BYTES
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
    shell: Shell, batch: Sequence[BoxFile], into: Path, who: str
) -> tuple[list[BoxFile], list[str]]:
    asked = {file.path for file in batch}
    wanted = json.dumps([file.path for file in batch])
    try:
        if batch[0].size_bytes <= SMALL_BYTES:
            packed = _pack(shell, batch[0], wanted, who)
            if packed is not None:
                return _unpack(shell, packed, asked, into, who)
        told = rows_of(shell, DIGEST, (), f"read {batch[0].path}", wanted)
        rows = [file for file in told if file.path in asked]
    except HostKeyChanged:
        raise
    except (PhaseFailed, OSError) as error:
        return [], [f"{file.path} was not fetched: {error}" for file in batch]
    came, failed = list[BoxFile](), list[str]()
    for file in rows:
        try:
            _fetch_one(shell, file, into / file.path, who)
            came.append(file)
        except (PhaseFailed, OSError) as error:
            failed.append(f"{file.path} was not fetched: {error}")
    return came, failed


def _pack(shell: Shell, first: BoxFile, wanted: str, who: str) -> list[BoxFile] | None:
    """What was packed on the box; None where it has no room for that."""
    archive = f"{KEEP}/batch{who}.tar"
    try:
        return rows_of(shell, PACK, (archive,), f"read {first.path}", wanted)
    except PhaseFailed:
        if not shell.run(f"rm -f {archive}; :", timeout_s=REMOVE_S).ok:
            raise  # not its disk, but the line to it
    return None


def _unpack(
    shell: Shell, rows: Sequence[BoxFile], asked: set[str], into: Path, who: str
) -> tuple[list[BoxFile], list[str]]:
    """What was packed on the box, each file checked against the digest told of it."""
    came, failed = list[BoxFile](), list[str]()
    into.mkdir(parents=True, exist_ok=True)
    archive = into / f".batch{who}.part"
    try:
        shell.get(f"{KEEP}/batch{who}.tar", archive)
        with tarfile.open(archive) as tar:
            for index, file in enumerate(rows):
                if file.path not in asked:
                    continue
                try:
                    member = tar.extractfile(str(index))
                    data = member.read(MOST_PACKED_BYTES + 1) if member is not None else b""
                    _keep(data, file, into / file.path, who)
                    came.append(file)
                except (PhaseFailed, OSError, KeyError) as error:
                    failed.append(f"{file.path} was not fetched: {error}")
    except tarfile.TarError as error:
        failed.append(f"{len(rows)} files were not fetched: their archive is broken: {error}")
    finally:
        archive.unlink(missing_ok=True)
    return came, failed


def _keep(data: bytes, file: BoxFile, target: Path, who: str) -> None:
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise PhaseFailed("what arrived is not what the box has")
    if target.is_file() and _sha256(target) == file.sha256:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = _part_of(target, who)
    part.write_bytes(data)
    os.utime(part, ns=(file.mtime_ns, file.mtime_ns))
    part.replace(target)


def _fetch_one(shell: Shell, file: BoxFile, target: Path, who: str) -> None:
    if target.is_file() and _sha256(target) == file.sha256:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = _part_of(target, who)
    shell.get(file.path, part)
    if (got := _sha256(part)) != file.sha256:
        raise PhaseFailed(
            f"it arrived with digest {got[:12]}, the box has {file.sha256[:12]}; what came is "
            f"kept as {part}"
        )
    part.replace(target)


def _part_of(target: Path, who: str) -> Path:
    name = hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]
    return target.with_name(f".{name}{who}.part")


def _note(shell: Shell, files: Sequence[BoxFile]) -> None:
    named = [file for file in files if "\n" not in file.path]  # the note has a line for each
    lines = "".join(f"{file.mtime_ns} {file.size_bytes} {file.path}\n" for file in named)
    name = f"{KEEP}/collected.txt"
    shell.run(f"mkdir -p {KEEP}; cat > {name}.tmp; mv {name}.tmp {name}", timeout_s=30, stdin=lines)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
