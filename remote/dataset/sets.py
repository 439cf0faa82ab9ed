"""One dataset or several, opened as one.

Upstream takes a list of datasets: each iteration goes through one after the other, no batch mixes
two, and identifiers are used as they are, which is what the builder's option
--puzzle-identifiers-start is for.  So here; but upstream takes sets whose identifiers mean
different puzzles (they then train one embedding), and adds up the counts of all sets although their
ranges must not overlap.  Here the first is refused, and there are as many identifiers as the
highest needs.
"""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from remote.dataset.grids import SEQ_LEN
from remote.dataset.identifiers import BLANK, Names
from remote.dataset.layout import open_names, open_split, read_object
from remote.dataset.split import MANIFEST, SMALL, SPLITS, DatasetError, Rows, Split


def open_splits(roots: Sequence[Path], split: str, *, trained_on: Sequence[Path] = ()) -> Split:
    """The split of all datasets together.

    `trained_on` are the datasets whose identifiers a model knows, if they are not these: those of
    the split must have the same meaning there.
    """
    opened = [open_split(root, split) for root in roots]
    if len(roots) > 1:
        names_of(roots)
    if trained_on and list(trained_on) != list(roots):
        _require_known(roots, opened, trained_on)
    return opened[0] if len(opened) == 1 else _joined(opened)


def names_of(roots: Sequence[Path]) -> Sequence[str]:
    """The name of every identifier; DatasetError where two datasets mean different puzzles."""
    if len(roots) == 1:
        return open_names(roots[0])
    merged: list[str] = []
    for number, root in enumerate(roots):
        before = " and ".join(map(str, roots[:number]))
        names = list(open_names(root))
        merged += [BLANK] * (len(names) - len(merged))
        for identifier, name in enumerate(names):
            if merged[identifier] not in (BLANK, name) and name != BLANK:
                raise DatasetError(
                    f"{root} is built for other identifiers than {before}:"
                    f" number {identifier} is {name}, there it is {merged[identifier]}. Build it"
                    f" again with --puzzle-identifiers-start {len(merged)}"
                )
            if name != BLANK:
                merged[identifier] = name
    return merged


def held_out_puzzles(roots: Sequence[Path]) -> dict[str, Any]:
    """The raw held-out puzzles of all datasets."""
    return {
        name: puzzle
        for root in roots
        for name, puzzle in read_object(root / "test_puzzles.json").items()
    }


def fingerprint(roots: Sequence[Path]) -> str:
    """A digest of which puzzles, augmentations and pairs there are, and their identifiers.

    It is the same for both forms of a dataset and for upstream's build of it, so a run that began
    on one may go on with another; about half a second for 1.2 million identifiers.
    """
    digest = hashlib.sha256()
    for root in roots:
        for piece in _names_as_json(root):
            digest.update(piece)
        for split in SPLITS:
            opened = open_split(root, split)
            for name in SMALL:
                digest.update(getattr(opened, name).astype("<i4").data)
    return digest.hexdigest()


def files_of(roots: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """By dataset and file: its bytes now, and the sha256 that the manifest has of it, if any.

    What a fingerprint leaves out, for it is the same for every form: the tokens themselves.
    """
    found: dict[str, dict[str, Any]] = {}
    for root in roots:
        listed = read_object(root / MANIFEST)["files"] if (root / MANIFEST).exists() else {}
        found[str(root)] = {
            str(path.relative_to(root)): {
                "bytes": path.stat().st_size,
                "sha256": listed.get(str(path.relative_to(root)), {}).get("sha256"),
            }
            for path in sorted(root.rglob("*"))
            if path.suffix in (".npy", ".npz", ".json") and path.name != MANIFEST
        }
    return found


class JoinedRows(Rows):
    """The rows of several arrays, one array after the other."""

    def __init__(self, parts: list[Rows]) -> None:
        self._parts = parts
        self._bounds = np.cumsum([0, *map(len, parts)])
        self.shape = (int(self._bounds[-1]), SEQ_LEN)
        self.dtype = np.dtype(np.uint8)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        rows = np.asarray(rows)
        found = np.empty((len(rows), SEQ_LEN), np.uint8)
        for part, (first, end) in zip(self._parts, itertools.pairwise(self._bounds), strict=True):
            here = (rows >= first) & (rows < end)
            if here.any():
                found[here] = part[rows[here] - first]
        return found


def _joined(splits: list[Split]) -> Split:
    examples = np.cumsum([0, *(len(split.inputs) for split in splits)])
    puzzles = np.cumsum([0, *(len(split.puzzle_identifiers) for split in splits)])
    return dataclasses.replace(
        splits[0],
        num_puzzle_identifiers=max(split.num_puzzle_identifiers for split in splits),
        mean_puzzle_examples=float(examples[-1] / puzzles[-1]),
        inputs=JoinedRows([split.inputs for split in splits]),
        labels=JoinedRows([split.labels for split in splits]),
        puzzle_identifiers=np.concatenate([split.puzzle_identifiers for split in splits]),
        puzzle_indices=_chained([split.puzzle_indices for split in splits], examples),
        group_indices=_chained([split.group_indices for split in splits], puzzles),
        groups_in_sets=tuple(split.groups for split in splits),
    )


def _chained(offsets: list[np.ndarray], starts: np.ndarray) -> np.ndarray:
    """Offsets of each part from its own start on, and one end."""
    parts = [part[:-1] + start for part, start in zip(offsets, starts, strict=False)]
    return np.concatenate([*parts, starts[-1:]]).astype(np.int32)


def _require_known(roots: Sequence[Path], splits: list[Split], known_by: Sequence[Path]) -> None:
    known = names_of(known_by)
    trained_on = " and ".join(map(str, known_by))
    for root, split in zip(roots, splits, strict=True):
        names = open_names(root)
        for identifier in np.unique(split.puzzle_identifiers).tolist():
            there = known[identifier] if identifier < len(known) else "none"
            if names[identifier] != there:
                raise DatasetError(
                    f"{root} is built for other identifiers than {trained_on}:"
                    f" number {identifier} is {names[identifier]}, there it is {there}. Evaluate on"
                    " the test split of the training data, or build both with the same subsets,"
                    " --num-aug and --seed"
                )


def _names_as_json(root: Path) -> Iterator[bytes]:
    names = open_names(root)
    if isinstance(names, Names):
        yield from names.as_json()
    else:
        yield json.dumps(names).encode()
