"""Files of a box: which match, their digests, and fetching them whole or not at all."""

import hashlib
import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpurun.errors import PhaseFailed
from gpurun.phases import KEEP
from gpurun.shell import Shell

LIST_S = 600.0

# Runs on the box with nothing but the standard library.
_LISTING = """
import glob, hashlib, json, os, sys
seen = set()
for pattern in sys.argv[2:]:
    for path in glob.glob(pattern, recursive=True):
        found = [os.path.join(d, f) for d, _, fs in os.walk(path) for f in fs]
        seen.update(found if os.path.isdir(path) else [path])
for path in sorted(seen):
    if not os.path.isfile(path) or os.path.islink(path) or path.endswith((".tmp", ".part")):
        continue
    info = os.stat(path)
    sha = hashlib.sha256()
    if sys.argv[1] == "digest":
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                sha.update(block)
    print(json.dumps([path, info.st_size, info.st_mtime_ns, sha.hexdigest()]))
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
    result = shell.run(f"{python} -c {shlex.quote(_LISTING)} {words}", timeout_s=LIST_S)
    if not result.ok:
        raise PhaseFailed(f"cannot list {', '.join(globs)} on the box: {result.tail(3)}")
    rows = [json.loads(line) for line in result.output.splitlines() if line.startswith("[")]
    return [BoxFile(*row) for row in rows]


def fetch(
    shell: Shell,
    globs: Sequence[str],
    into: Path,
    on_file: Callable[[BoxFile], None] = lambda _file: None,
) -> list[BoxFile]:
    """Fetch what matches and is not here yet, the newest first; digests are compared.

    A good local file is never replaced by a broken one: each arrives beside it and is renamed.
    What has been fetched is noted on the box, so that a guard may remove it there.
    """
    found = matching(shell, globs, digests=True)
    for file in sorted(found, key=lambda one: -one.mtime_ns):
        target = into / file.path
        if not (target.is_file() and _sha256(target) == file.sha256):
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(target.name + ".part")
            shell.get(file.path, part)
            if (got := _sha256(part)) != file.sha256:
                raise PhaseFailed(
                    f"{file.path} arrived with digest {got[:12]}, the box has {file.sha256[:12]}; "
                    f"what came is kept as {part}"
                )
            part.replace(target)
        on_file(file)
    _note(shell, found)
    return found


def _note(shell: Shell, files: Sequence[BoxFile]) -> None:
    lines = "".join(f"{file.mtime_ns} {file.size_bytes} {file.path}\n" for file in files)
    name = f"{KEEP}/collected.txt"
    shell.run(f"mkdir -p {KEEP}; cat > {name}.tmp; mv {name}.tmp {name}", timeout_s=30, stdin=lines)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
