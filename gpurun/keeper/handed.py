"""Keys that a shell's environment alone holds, where the keeper and the drivers find them.

They lie in memory, on a tmpfs, in a file that is closed to others: never on a disk, among arguments
or in a log, and gone when the user logs out or this machine restarts.  `up` alone writes that file:
what still ends after `keeper stop` has removed it, or is started anew, cannot bring it back.
"""

import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from gpurun import wiring
from gpurun.clock import Deadline
from gpurun.filesystem import kind_of
from gpurun.places import Places

IN_MEMORY = ("tmpfs", "ramfs")
MOST_BYTES = 1 << 16
WAIT_S = 5.0

Keys = dict[str, dict[str, str]]  # cloud -> its variables


def folders() -> list[Path]:
    """Where they may lie: those of this user first."""
    named = os.environ.get("XDG_RUNTIME_DIR", "").strip()
    own = [Path(named)] if named else []
    return list(dict.fromkeys([*own, Path(f"/run/user/{os.geteuid()}"), Path("/dev/shm")]))


def place(among: Iterable[Path]) -> Path | None:
    """The first of these that is in memory and that we may write; None where none is."""
    for folder in among:
        if os.access(folder, os.W_OK | os.X_OK) and kind_of(folder) in IN_MEMORY:
            return folder
    return None


def environ(keys: Keys) -> dict[str, str]:
    """Our environment; of a cloud whose key was handed over, what was handed over with it."""
    found = dict(os.environ)
    for cloud, variables in keys.items():
        for name in wiring.VARIABLES[cloud]:
            found.pop(name, None)
        found |= variables
    return found


def read(places: Places) -> Keys:
    """What was handed over for this state directory; nothing that another user may have put."""
    for folder in folders():
        with suppress(OSError, ValueError):
            if text := _text(_file(folder, places)):
                return _known(json.loads(text))
    return {}


def hand(places: Places, cloud: str, variables: Mapping[str, str]) -> None:
    """From now on these are the variables of this cloud; OSError if they cannot be kept."""
    with _alone(places, WAIT_S):
        keys = {name: kept for name, kept in read(places).items() if name != cloud}
        if variables:
            keys[cloud] = dict(variables)
        _remove(places, but=_write(places, keys) if keys else None)


def forget(places: Places, *, unless: Callable[[], bool] | None = None) -> bool:
    """Remove what was handed over, unless something needs it now; whether there was any.

    A run is in the journal before its key is handed over: `unless` cannot miss it.  Who has an
    `unless` asks again and again, and does not wait: OSError while another writes.
    """
    if not any(path.exists() for path in _files(places)):
        return False
    with _alone(places, 0 if unless else WAIT_S):
        return not (unless and unless()) and _remove(places)


def _file(folder: Path, places: Places) -> Path:
    mark = hashlib.sha256(os.fsencode(places.root)).hexdigest()[:16]
    return folder / f"gpurun-{os.geteuid()}-{mark}"


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _files(places: Places) -> list[Path]:
    paths = [_file(folder, places) for folder in folders()]
    return [*map(_unfinished, paths), *paths]


def _text(path: Path) -> bytes:
    """Another user may put there what is no file: it is not waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        seen = os.fstat(descriptor)
        ours = seen.st_uid == os.geteuid() and not stat.S_IMODE(seen.st_mode) & 0o077
        return os.read(descriptor, MOST_BYTES) if ours and stat.S_ISREG(seen.st_mode) else b""
    finally:
        os.close(descriptor)


def _write(places: Places, keys: Keys) -> Path:
    """What was there stays until all of the new is."""
    folder = place(folders())
    if folder is None:
        raise OSError("no folder in memory")
    path = _file(folder, places)
    new = _unfinished(path)
    new.unlink(missing_ok=True)
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(keys, file)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    return path


def _remove(places: Places, but: Path | None = None) -> bool:
    removed = False
    for path in _files(places):
        if path != but:
            with suppress(OSError):
                path.unlink()
                removed = True
    return removed


@contextmanager
def _alone(places: Places, within_s: float) -> Iterator[None]:
    """The state directory itself is the lock: held for a moment, and nothing is left behind.

    OSError if another holds it for longer.
    """
    try:
        descriptor = os.open(places.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:  # then nobody else works with it
        yield
        return
    try:
        _take(descriptor, within_s)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, within_s: float) -> None:
    deadline = Deadline(within_s)
    while not deadline.passed():
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _known(found: object) -> Keys:
    """Only the variables that belong to a cloud."""
    keys: Keys = {}
    for cloud, variables in found.items() if isinstance(found, dict) else ():
        if cloud in wiring.VARIABLES and isinstance(variables, dict):
            keys[cloud] = {
                name: value
                for name, value in variables.items()
                if name in wiring.VARIABLES[cloud] and isinstance(value, str)
            }
    return keys
