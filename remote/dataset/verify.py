"""Proves that a dataset is complete: python -m remote.dataset.verify PATH

The size of dataset.json says nothing (it has about 235 bytes); the arrays must agree with their
indices, and, where the builder left a manifest, with its digests.  Sets made by TRM's, URM's or
HRM's builders have no manifest, and URM's and HRM's no total_puzzles: both are optional.
"""

import argparse
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from remote.dataset.grids import SEQ_LEN, VOCAB_SIZE
from remote.dataset.layout import MANIFEST, SPLITS, DatasetError, Split, open_split, read_json

ROWS_AT_ONCE = 1 << 16


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m remote.dataset.verify")
    parser.add_argument("path", type=Path, help="the dataset: it holds train/ and test/")
    root = parser.parse_args(argv).path
    wrong = list(problems(root))
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
    digests = "digests as in the manifest" if (root / MANIFEST).exists() else "no manifest"
    print(f"verify: {root} is complete ({digests})")
    return 0


def problems(root: Path) -> Iterator[str]:
    """Everything that is wrong, each with what was found and what was expected."""
    found = sorted(str(path.relative_to(root)) for path in root.glob("*/dataset.json"))
    expected = sorted(f"{split}/dataset.json" for split in SPLITS)
    if found != expected:
        yield f"found {found or 'no dataset.json'} under {root}, expected {expected}"
    names = _read(root / "identifiers.json")
    if isinstance(names, str):
        yield names
    puzzles = _read(root / "test_puzzles.json")
    if isinstance(puzzles, str):
        yield puzzles
    for name in SPLITS:
        try:
            split = open_split(root, name)
        except DatasetError as error:
            yield str(error)
            continue
        yield from (f"{name}: {problem}" for problem in _split_problems(root / name, split))
        if not isinstance(names, str) and len(names) != split.num_puzzle_identifiers:
            wanted = split.num_puzzle_identifiers
            yield f"identifiers.json names {len(names)}, {name}/dataset.json expects {wanted}"
    if (root / MANIFEST).exists():
        yield from _digest_problems(root)


def _split_problems(directory: Path, split: Split) -> Iterator[str]:
    examples, puzzles, groups = (
        len(split.inputs),
        len(split.puzzle_identifiers),
        split.groups,
    )
    if (split.seq_len, split.vocab_size) != (SEQ_LEN, VOCAB_SIZE):
        found = f"seq_len {split.seq_len}, vocab_size {split.vocab_size}"
        yield f"found {found}, expected {SEQ_LEN}, {VOCAB_SIZE}"
    for name in ("inputs", "labels"):
        array = getattr(split, name)
        if array.dtype != np.uint8 or array.shape != (examples, split.seq_len):
            expected = f"uint8 {(examples, split.seq_len)}"
            yield f"{name} is {array.dtype} {array.shape}, expected {expected}"
        elif (top := _largest(array)) >= split.vocab_size:
            yield f"{name} holds token {top}, expected less than {split.vocab_size}"
    yield from _index_problems("puzzle_indices", split.puzzle_indices, puzzles, examples)
    yield from _index_problems("group_indices", split.group_indices, groups, puzzles)
    if not examples:
        yield "found no examples, expected at least one"
    ids = split.puzzle_identifiers
    if puzzles and not (ids.min() >= 0 and ids.max() < split.num_puzzle_identifiers):
        expected = f"0..{split.num_puzzle_identifiers - 1}"
        yield f"puzzle_identifiers span {ids.min()}..{ids.max()}, expected within {expected}"
    description = read_json(directory / "dataset.json")
    counted = {
        "total_groups": groups,
        "total_puzzles": puzzles,
        "mean_puzzle_examples": examples / max(puzzles, 1),
    }
    for key, value in counted.items():
        if key in description and not np.isclose(description[key], value, rtol=1e-9):
            yield f"dataset.json says {key} {description[key]}, the arrays say {value}"


def _index_problems(name: str, offsets: np.ndarray, entries: int, end: int) -> Iterator[str]:
    """`entries` + 1 rising offsets from 0 to `end`."""
    if len(offsets) != entries + 1:
        yield f"{name} has {len(offsets)} entries, expected {entries + 1}"
    elif offsets[0] != 0 or offsets[-1] != end:
        yield f"{name} runs from {offsets[0]} to {offsets[-1]}, expected 0 to {end}"
    elif (np.diff(offsets) <= 0).any():
        yield f"{name} does not rise everywhere: entry {int(np.argmax(np.diff(offsets) <= 0))}"


def _largest(array: np.ndarray) -> int:
    blocks = range(0, len(array), ROWS_AT_ONCE)
    return max((int(array[at : at + ROWS_AT_ONCE].max()) for at in blocks), default=0)


def _digest_problems(root: Path) -> Iterator[str]:
    for name, expected in read_json(root / MANIFEST)["files"].items():
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


def _read(path: Path) -> dict | str:
    try:
        return read_json(path)
    except DatasetError as error:
        return str(error)


if __name__ == "__main__":
    sys.exit(main())
