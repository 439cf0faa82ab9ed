"""The cargo: what travels to the box, under a digest over names and contents.

It is remote/ (the source files that git tracks, or that the wheel holds) and the user's own code.
A marketplace box is a stranger's machine: keys, caches and what git ignores stay here, by name,
whatever a recipe says.  What was left behind is listed, never dropped in silence.
"""

import fnmatch
import gzip
import hashlib
import json
import os
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from gpurun import worktree
from gpurun.errors import UsageError
from gpurun.places import Places

if TYPE_CHECKING:
    from gpurun.recipe.schema import Recipe, Ship

SOURCES = (".py", ".cpp", ".h", ".yaml", ".json", ".txt")
SECRET = (
    *(".env", ".env.*", ".envrc", "*.pem", "*.key", "id_*", ".netrc", "_netrc", ".ssh", ".aws"),
    *(".gnupg", ".kube", ".docker", ".pypirc", ".git-credentials", ".vast_api_key", ".prime"),
)
CLUTTER = (".git", "__pycache__", ".venv", "*.pyc", ".mypy_cache", ".ruff_cache", ".pytest_cache")
ARTIFACTS_IGNORED = "# gpurun: what runs have brought home\n*\n"  # a .gitignore
ORIGIN = "remote/origin.json"  # the commit that remote/ is of: a box has no repository
NOT_SOURCE = ("data", "build", "dist", "runs", "wandb", "checkpoints", ".*")


@dataclass(frozen=True, slots=True)
class Item:
    """One file of the cargo."""

    name: str  # on the box, relative to the run's folder
    path: Path
    bytes: int
    sha256: str
    executable: bool = False
    link: str = ""  # of a link to a folder: where it points, relative to its own
    text: str = ""  # of a file that is made for the box: its content, and `path` is no file

    def opened(self) -> BinaryIO:
        return BytesIO(self.text.encode()) if self.text else self.path.open("rb")


@dataclass(frozen=True, slots=True)
class Cargo:
    """The files that go to the box, sorted by name."""

    files: tuple[Item, ...]
    left_behind: tuple[str, ...] = ()  # why each stayed: "app/.env: looks like a secret"

    @property
    def total_bytes(self) -> int:
        return sum(item.bytes for item in self.files)

    @property
    def manifest(self) -> str:
        """What `sha256sum --check` reads on the box; links are comments to it."""
        return "".join(
            f"# {item.name} -> {item.link}\n" if item.link else f"{item.sha256}  {item.name}\n"
            for item in self.files
        )

    @property
    def digest(self) -> str:
        """Of the code: that another commit holds the same makes no difference."""
        code = Cargo(tuple(item for item in self.files if item.name != ORIGIN))
        return hashlib.sha256(os.fsencode(code.manifest)).hexdigest()

    def write_tar(self, path: Path) -> None:
        """A tar.gz whose bytes depend on names and contents alone."""
        part = path.with_name(f"{path.name}.part")
        try:
            with (
                part.open("wb") as raw,
                gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0) as out,
                tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar,
            ):
                for item in self.files:
                    _add(tar, item)
            part.replace(path)
        except OSError as error:
            raise UsageError(f"{path}: the cargo cannot be packed: {error}") from error
        finally:
            part.unlink(missing_ok=True)


def data_dir() -> Path:
    """Where remote/ and recipes/ lie: inside the wheel, else at the checkout's root."""
    package = Path(__file__).resolve().parent
    for folder in (package / "_bundle", package.parent):
        if (folder / "remote").is_dir() and (folder / "recipes").is_dir():
            return folder
    raise UsageError(f"{package}: remote/ and recipes/ are not beside it: install gpurun again")


def cargo(recipe: "Recipe", recipe_dir: Path | None = None, clones: Path | None = None) -> Cargo:
    """remote/ and what the recipe ships; a git repository is cloned here, once per commit."""
    files, left = _remote(data_dir())
    limit = recipe.max_ship_mb * 10**6
    for ship in recipe.ship:
        found, stayed = _shipped(ship, recipe_dir or Path(), clones or Places.here().clones, limit)
        limit -= sum(item.bytes for item in found)
        files += found
        left += stayed
    files.sort(key=lambda item: os.fsencode(item.name))
    for one, other in pairwise(files):
        if one.name == other.name:
            raise UsageError(f"ship: {one.path} and {other.path} both go to {one.name}: move one")
    return Cargo(tuple(files), tuple(left))


def _remote(root: Path) -> tuple[list[Item], list[str]]:
    """Source files of remote/: those git tracks, in a checkout; else all that were packaged."""
    names = sorted(_walked(root / "remote"))
    tracked = None if root.name == "_bundle" else worktree.files(root / "remote", "--cached")
    files: list[Item] = []
    left: list[str] = []
    for name in names:
        parts = PurePosixPath(name).parts
        odd = any(_like(part, (*NOT_SOURCE, *SECRET, *CLUTTER)) for part in parts)
        path = root / "remote" / name
        if odd or path.suffix not in SOURCES or path.is_symlink() or not path.is_file():
            continue
        if tracked and name not in tracked:
            left.append(f"remote/{name}: not tracked by git; `git add` it if the box needs it")
            continue
        files.append(_item(f"remote/{name}", path))
    state = worktree.state(root / "remote") if tracked else None
    if state is not None:
        text = json.dumps({"commit": state.commit, "dirty": state.dirty})
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        files.append(Item(ORIGIN, root / ORIGIN, len(text), sha256, text=text))
    return files, left


def _shipped(ship: "Ship", base: Path, clones: Path, limit: int) -> tuple[list[Item], list[str]]:
    source = ship.git or ship.from_ or ""
    folder = (base / source).resolve()
    if ship.git:
        folder = worktree.cloned(ship.git, ship.pinned, clones)
    files: list[Item] = []
    left: list[str] = []
    size = 0
    for name in _names(folder):
        goes_to = PurePosixPath(ship.to, name).as_posix()
        path = folder / name
        if why := _stays(folder, path, name):
            left.append(f"{goes_to}: {why}")
            continue
        size += 0 if path.is_dir() else path.stat().st_size
        if size > limit:
            raise UsageError(
                f"ship: {source} is over the {limit / 10**6:.0f} MB that are left of max_ship_mb: "
                "ship less, or raise max_ship_mb in the recipe"
            )
        if path.is_dir():
            files.append(_link(goes_to, path))
        else:
            files.append(_item(goes_to, path, os.access(path, os.X_OK)))
    if not any(not item.link for item in files):
        raise UsageError(f"ship: {source} holds no file that may travel: check its path")
    return files, left


def _names(folder: Path) -> list[str]:
    """Files of a folder that its .gitignore allows; all of them outside a git work tree."""
    in_git = any((parent / ".git").exists() for parent in (folder, *folder.parents))
    which = ("--cached", "--others", "--exclude-standard")
    found = worktree.files(folder, *which) if in_git else set()
    if found is None:
        raise UsageError(
            f"ship: git cannot list {folder}, so what it ignores is not known: "
            f"install git, or see what `git -C {folder} status` says"
        )
    names = found or _walked(folder)  # a folder ignored as a whole was named on purpose
    return sorted(name for name in names if os.path.lexists(folder / name))


def _stays(folder: Path, path: Path, name: str) -> str:
    """Why a file does not travel; empty if it does."""
    parts = PurePosixPath(name).parts
    if any(_like(part, SECRET) for part in parts) or _like(path.resolve().name, SECRET):
        return "looks like a secret by its name"
    if any(_like(part, CLUTTER) for part in parts):
        return "a cache or git's own"
    if not path.resolve().is_relative_to(folder.resolve()):
        return "a link that leads out of the folder"
    # A link to a file travels as that file, a link to a folder as a link.
    return "" if path.is_file() or (path.is_symlink() and path.is_dir()) else "not a regular file"


def _walked(folder: Path) -> set[str]:
    names: set[str] = set()
    for root, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not _like(name, CLUTTER) and not _holds_artifacts(Path(root) / name)
        ]
        links = [name for name in folders if (Path(root) / name).is_symlink()]
        found = (*files, *links)
        names.update((Path(root) / name).relative_to(folder).as_posix() for name in found)
    return names


def _holds_artifacts(folder: Path) -> bool:
    """What runs have brought home, in a folder that is shipped: it does not travel again."""
    try:
        return (folder / ".gitignore").read_text() == ARTIFACTS_IGNORED
    except (OSError, UnicodeDecodeError):
        return False


def _like(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in patterns)


def _item(name: str, path: Path, executable: bool = False) -> Item:
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return Item(name, path, path.stat().st_size, sha256, executable)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}): check its mode") from error


def _link(name: str, path: Path) -> Item:
    """To a folder of the same code: absolute targets and chains of links become relative ones."""
    return Item(name, path, 0, "", link=os.path.relpath(path.resolve(), path.parent.resolve()))


def _add(tar: tarfile.TarFile, item: Item) -> None:
    entry = tarfile.TarInfo(item.name)
    if item.link:
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, item.link, 0o777
        tar.addfile(entry)
        return
    entry.size, entry.mode = item.bytes, 0o755 if item.executable else 0o644
    with item.opened() as file:
        read = _Digested(file)
        tar.addfile(entry, read)
    if read.sha256.hexdigest() != item.sha256:
        raise UsageError(f"{item.path} changed while it was packed: run the command again")


class _Digested:
    """A file that is read once, with the digest of what was read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()

    def read(self, count: int = -1, /) -> bytes:
        block = self._file.read(count)
        self.sha256.update(block)
        return block
