"""What the box says of its files: which match, and their digests; none of it is taken on trust."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from gpurun.errors import PhaseFailed
from gpurun.phases import KEEP
from gpurun.shell import Shell
from gpurun.shell.lines import lines_of

LIST_S = 600.0
# Conda images have theirs off the PATH; setup notes which one it took.
_PYTHON = (
    f"for each in venv/bin/python $(cat {KEEP}/python 2>/dev/null) python3 /opt/conda/bin/python3; "
    "do if command -v $each >/dev/null; then echo $each; break; fi; done"
)
MOST_PACKED_BYTES = 32 << 20  # of one file

# These run on the box with nothing but the standard library.
# A link is followed only to what lies inside the box's root, and each file is listed once.
LISTING = """
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
DIGEST = """
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
PACK = f"""
import hashlib, io, json, os, sys, tarfile
rows = 0
with tarfile.open(sys.argv[1], "w") as tar:
    for path in json.load(sys.stdin):
        try:
            info = os.stat(path)
            with open(path, "rb") as file:
                data = file.read({MOST_PACKED_BYTES})
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

    @property
    def version(self) -> tuple[str, int, int]:
        """The same as long as nobody has written to it."""
        return self.path, self.size_bytes, self.mtime_ns


def matching(shell: Shell, globs: Sequence[str]) -> list[BoxFile]:
    """The files under these globs; a folder means all that is in it."""
    return rows_of(shell, LISTING, globs, f"list {', '.join(globs)}")


def rows_of(
    shell: Shell, script: str, words: Sequence[str], what: str, stdin: str = ""
) -> list[BoxFile]:
    """What a script prints, row by row, and all of it; PhaseFailed says what could not be done."""
    python = f'"$({_PYTHON})"'
    command = f"mkdir -p {KEEP}; {python} -c {shlex.quote(script)} {shlex.join(words)}"
    result, lines = lines_of(shell, command, timeout_s=LIST_S, stdin=stdin)
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
