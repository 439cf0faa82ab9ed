"""Proves that a dataset is complete: python -m remote.dataset.verify PATH

The size of dataset.json says nothing (it has about 235 bytes); the arrays must agree with their
indices, and, where the builder left a manifest, with its digests.  Sets made by TRM's, URM's or
HRM's builders have no manifest, and URM's and HRM's no total_puzzles: both are optional.
"""

import argparse
import contextlib
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from remote.dataset.checks import compact_problems, split_problems
from remote.dataset.compact import FILE, Compact
from remote.dataset.layout import is_compact, open_names, open_split, read_object, read_split
from remote.dataset.split import LARGE, MANIFEST, SPLITS, DatasetError, Split

ROWS_AT_ONCE = 1 << 16


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m remote.dataset.verify")
    parser.add_argument("path", type=Path, help="the dataset: it holds train/ and test/")
    root = parser.parse_args(argv).path
    wrong = list(dict.fromkeys(problems(root)))
    for problem in wrong:
        print(f"verify: {problem}")
    if wrong:
        print(f"verify: {root} is NOT a complete dataset ({len(wrong)} problem(s))")
        return 1
    for name in SPLITS:
        split = open_split(root, name)
        print(
            f"{name}: {len(split.inputs)} examples, {len(split.puzzle_identifiers)} puzzles,"
            f" {split.groups} groups"
        )
    form = "compact" if is_compact(root) else "arrays"
    digests = "digests as in the manifest" if (root / MANIFEST).exists() else "no manifest"
    print(f"verify: {root} is complete ({form}, {digests})")
    return 0


def problems(root: Path) -> Iterator[str]:
    """Everything that is wrong, each with what was found and what was expected."""
    if not root.is_dir():
        yield f"there is no directory {root}"
        return
    found = sorted(str(path.relative_to(root)) for path in root.glob("*/dataset.json"))
    expected = sorted(f"{split}/dataset.json" for split in SPLITS)
    if found != expected:
        yield f"found {found or 'no dataset.json'} under {root}, expected {expected}"
    identifiers = None
    try:
        identifiers = len(open_names(root))
        read_object(root / "test_puzzles.json")
    except DatasetError as error:
        yield str(error)
    for name in SPLITS:
        try:
            split = read_split(root, name)
        except DatasetError as error:
            yield str(error)
            continue
        yield from (f"{name}: {problem}" for problem in _split_problems(root / name, split))
        if identifiers not in (None, split.num_puzzle_identifiers):
            wanted = split.num_puzzle_identifiers
            yield f"{identifiers} identifiers are named, {name}/dataset.json expects {wanted}"
    if is_compact(root):
        yield from _compact_problems(root)
    if (root / MANIFEST).exists():
        try:
            yield from _digest_problems(root)
        except (DatasetError, OSError) as error:
            yield str(error)


def _compact_problems(root: Path) -> Iterator[str]:
    with contextlib.suppress(DatasetError):  # already said
        yield from (f"{FILE}: {p}" for p in compact_problems(Compact.load(root / FILE)))


def _split_problems(directory: Path, split: Split) -> Iterator[str]:
    yield from split_problems(split)
    for name in LARGE:
        array = getattr(split, name)
        # Tokens that are drawn from checked colours need no look.
        if isinstance(array, np.ndarray) and (top := _largest(array)) >= split.vocab_size:
            yield f"{name} holds token {top}, expected less than {split.vocab_size}"
    puzzles = len(split.puzzle_identifiers)
    description = read_object(directory / "dataset.json")
    counted = {
        "total_groups": split.groups,
        "total_puzzles": puzzles,
        "mean_puzzle_examples": len(split.inputs) / max(puzzles, 1),
    }
    for key, value in counted.items():
        if key not in description:
            continue
        said = description[key]
        if not isinstance(said, int | float) or not np.isclose(said, value, rtol=1e-9):
            yield f"dataset.json says {key} {description[key]}, the arrays say {value}"


def _largest(array: np.ndarray) -> int:
    blocks = range(0, len(array), ROWS_AT_ONCE)
    return max((int(array[at : at + ROWS_AT_ONCE].max()) for at in blocks), default=0)


def _digest_problems(root: Path) -> Iterator[str]:
    try:
        listed = {
            name: {"bytes": int(entry["bytes"]), "sha256": str(entry["sha256"])}
            for name, entry in read_object(root / MANIFEST)["files"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        yield f"{root / MANIFEST} lists no files with their bytes and sha256: {error!r}"
        return
    for name, expected in listed.items():
        path = root / name
        if not path.exists():
            yield f"{name} is missing, the manifest lists it"
        elif (size := path.stat().st_size) != expected["bytes"]:
            yield f"{name} has {size} bytes, expected {expected['bytes']}"
        elif (digest := _sha256(path)) != expected["sha256"]:
            yield f"{name} has sha256 {digest[:16]}, expected {expected['sha256'][:16]}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
