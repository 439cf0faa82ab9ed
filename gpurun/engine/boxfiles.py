"""Files of a box: which match, their digests, and fetching them whole or not at all."""

import hashlib
import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpurun.errors import PhaseFailed
from gpurun.phases import KEEP
from gpurun.shell import UNKNOWN_OUTCOME, Shell

LIST_S = 600.0
LIST_TRIES = 3

# Runs on the box with nothing but the standard library.
# A link is followed only to what lies inside the box's root, and each file is listed once.
_LISTING = """
import glob, hashlib, json, os, sys
root, seen = os.path.realpath("."), {}
for pattern in sys.argv[2:]:
    for path in glob.glob(pattern, recursive=True):
        inside = [os.path.join(d, f) for d, _, fs in os.walk(path) for f in fs]
        for name in inside if os.path.isdir(path) else [path]:
            real = os.path.realpath(name)
            if real.startswith(root + os.sep) and not name.endswith((".tmp", ".part")):
                seen.setdefault(real, os.path.normpath(name))
rows = 0
for real, path in sorted(seen.items(), key=lambda item: item[1]):
    try:
        info = os.stat(real)
        sha = hashlib.sha256()
        if sys.argv[1] == "digest":
            with open(real, "rb") as file:
                while block := file.read(1 << 20):
                    sha.update(block)
        elif not os.path.isfile(real):
            continue
    except OSError:
        continue
    print(json.dumps([path, info.st_size, info.st_mtime_ns, sha.hexdigest()]))
    rows += 1
print(json.dumps({"rows": rows}))
"""


@dataclass(frozen=True, slots=True)
class BoxFile:
    """A file of the box; its path is relative to the box's root."""

    path: str
    size_bytes: int
    mtime_ns: int
    sha256: str


def matching(shell: Shell, globs: Sequence[str], *, digests: bool = False) -> list[BoxFile]:
    """The files under these globs; a folder means all that is in it."""
    mode = "digest" if digests else "plain"
    words = " ".join(shlex.quote(word) for word in (mode, *globs))
    python = "$([ -x venv/bin/python ] && echo venv/bin/python || echo python3)"
    for _ in range(LIST_TRIES):
        lines: list[str] = []  # not the result's output: of a long list that keeps only the end
        result = shell.run(
            f"{python} -c {shlex.quote(_LISTING)} {words}", timeout_s=LIST_S, on_line=lines.append
        )
        if result.exited != UNKNOWN_OUTCOME:
            break
    rows = [_row(line) for line in lines if line.startswith("[")]
    last = lines[-1].strip() if lines else ""
    if not result.ok or last != json.dumps({"rows": len(rows)}):
        raise PhaseFailed(f"cannot list {', '.join(globs)} on the box: {result.tail(3)}")
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


def fetch(
    shell: Shell,
    globs: Sequence[str],
    into: Path,
) -> tuple[list[BoxFile], list[str]]:
    """Fetch what matches and is not here yet, the newest first; and what could not be fetched.

    A good local file is never replaced by a broken one: each arrives beside it and is renamed.
    What has been fetched is noted on the box, so that a guard may remove it there.
    """
    came, failed = [], []
    for file in sorted(matching(shell, globs, digests=True), key=lambda one: -one.mtime_ns):
        try:
            _fetch_one(shell, file, into / file.path)
            came.append(file)
        except (PhaseFailed, OSError) as error:  # one that moves or vanishes stops no other
            failed.append(f"{file.path} was not fetched: {error}")
    _note(shell, came)
    return came, failed


def _fetch_one(shell: Shell, file: BoxFile, target: Path) -> None:
    if target.is_file() and _sha256(target) == file.sha256:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]}.part")
    shell.get(file.path, part)
    if (got := _sha256(part)) != file.sha256:
        raise PhaseFailed(
            f"it arrived with digest {got[:12]}, the box has {file.sha256[:12]}; what came is "
            f"kept as {part}"
        )
    part.replace(target)


def _note(shell: Shell, files: Sequence[BoxFile]) -> None:
    named = [file for file in files if "\n" not in file.path]  # the note has a line for each
    lines = "".join(f"{file.mtime_ns} {file.size_bytes} {file.path}\n" for file in named)
    name = f"{KEEP}/collected.txt"
    shell.run(f"mkdir -p {KEEP}; cat > {name}.tmp; mv {name}.tmp {name}", timeout_s=30, stdin=lines)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
