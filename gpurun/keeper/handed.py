"""Keys that a shell's environment alone holds, where the keeper and the drivers find them.

They lie in memory, on a tmpfs, in a file that is closed to others: never on a disk, among arguments
or in a log, and gone after a reboot.  `up` alone writes that file: what still ends after `keeper
stop` has removed it, or is started anew, cannot bring it back.
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
from gpurun.places import Places

MOUNTS = Path("/proc/self/mountinfo")
IN_MEMORY = ("tmpfs", "ramfs")
MOST_BYTES = 1 << 16

Keys = dict[str, dict[str, str]]  # cloud -> its variables


def folders() -> list[Path]:
    """Where they may lie: those of this user first."""
    named = os.environ.get("XDG_RUNTIME_DIR", "").strip()
    own = [Path(named)] if named else []
    return list(dict.fromkeys([*own, Path(f"/run/user/{os.geteuid()}"), Path("/dev/shm")]))


def place(among: Iterable[Path]) -> Path | None:
    """The first of these that is in memory and that we may write; None where none is."""
    for folder in among:
        if _in_memory(folder) and os.access(folder, os.W_OK | os.X_OK):
            return folder
    return None


def environ(places: Places) -> Mapping[str, str]:
    """Our environment; of a cloud whose key was handed over, what was handed over with it."""
    found = dict(os.environ)
    for cloud, variables in read(places).items():
        for name in wiring.VARIABLES[cloud]:
            found.pop(name, None)
        found |= variables
    return found


def read(places: Places) -> Keys:
    """What was handed over for this state directory; nothing that another user may have put."""
    for folder in folders():
        with suppress(OSError, ValueError):
            descriptor = os.open(_file(folder, places), os.O_RDONLY | os.O_NOFOLLOW)
            with os.fdopen(descriptor, "rb") as file:
                seen = os.fstat(descriptor)
                if seen.st_uid == os.geteuid() and not stat.S_IMODE(seen.st_mode) & 0o077:
                    return _known(json.loads(file.read(MOST_BYTES)))
    return {}


def hand(places: Places, cloud: str, variables: Mapping[str, str]) -> None:
    """From now on these are the variables of this cloud; OSError if they cannot be kept."""
    with _alone(places):
        keys = {name: kept for name, kept in read(places).items() if name != cloud}
        if variables:
            keys[cloud] = dict(variables)
        _remove(places)
        if not keys:
            return
        folder = place(folders())
        if folder is None:
            raise OSError("no folder in memory")
        path = _file(folder, places)
        new = path.with_name(f"{path.name}.new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(keys, file)
        new.replace(path)


def forget(places: Places, *, unless: Callable[[], bool] = lambda: False) -> bool:
    """Remove what was handed over, unless something needs it now; whether there was any.

    A run is in the journal before its key is handed over: `unless` cannot miss it.
    """
    if not any(_file(folder, places).exists() for folder in folders()):
        return False
    with _alone(places):
        return not unless() and _remove(places)


def _file(folder: Path, places: Places) -> Path:
    mark = hashlib.sha256(os.fsencode(places.root)).hexdigest()[:16]
    return folder / f"gpurun-{os.geteuid()}-{mark}"


def _remove(places: Places) -> bool:
    removed = False
    for folder in folders():
        path = _file(folder, places)
        for each in (path.with_name(f"{path.name}.new"), path):
            with suppress(OSError):
                each.unlink()
                removed = True
    return removed


@contextmanager
def _alone(places: Places) -> Iterator[None]:
    """The state directory itself is the lock: held for a moment, and nothing is left behind."""
    try:
        descriptor = os.open(places.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:  # then nobody else works with it
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _in_memory(folder: Path) -> bool:
    """By the mount that it lies on."""
    with suppress(OSError, ValueError):
        inside = folder.resolve(strict=True)
        kinds = {}
        for line in MOUNTS.read_text().splitlines():
            before, _, after = line.partition(" - ")
            kinds[before.split()[4]] = after.split()[0]
        on = next(str(each) for each in (inside, *inside.parents) if str(each) in kinds)
        return kinds[on] in IN_MEMORY
    return False


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
