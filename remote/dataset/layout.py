"""Datasets on disk, in either form: how one is opened, and what is wrong if it cannot be."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from remote.dataset.checks import split_problems
from remote.dataset.compact import FILE, Compact
from remote.dataset.expand import arrays_of
from remote.dataset.identifiers import Names
from remote.dataset.split import LARGE, MANIFEST, SET, SMALL, SPLITS, DatasetError, Split

__all__ = ["MANIFEST", "SPLITS", "DatasetError", "Split", "open_split", "read_object"]

HOW_TO_BUILD = "build it with: python -m remote.dataset.build_arc_dataset --output-dir"


def open_split(root: Path, split: str) -> Split:
    """A split whose arrays fit each other and this program's tokens; else DatasetError."""
    found = read_split(root, split)
    for problem in split_problems(found):
        raise DatasetError(
            f"{root}/{split} is no usable dataset: {problem}. See all that is wrong with:"
            f" python -m remote.dataset.verify {root}; {HOW_TO_BUILD} {root}"
        )
    return found


def read_split(root: Path, split: str) -> Split:
    """A split whose files are there and can be read; DatasetError names the one that cannot."""
    directory = root / split
    description = read_object(directory / "dataset.json")
    if description.get("sets") != [SET]:
        raise DatasetError(f"{directory}/dataset.json: sets are {description.get('sets')}")
    try:
        return Split(
            pad_id=int(description["pad_id"]),
            blank_identifier_id=int(description["blank_identifier_id"]),
            vocab_size=int(description["vocab_size"]),
            seq_len=int(description["seq_len"]),
            num_puzzle_identifiers=int(description["num_puzzle_identifiers"]),
            mean_puzzle_examples=float(description["mean_puzzle_examples"]),
            **_arrays(root, split),
        )
    except KeyError as error:
        raise DatasetError(f"{directory}/dataset.json has no {error}") from error
    except (TypeError, ValueError) as error:
        raise DatasetError(f"{directory}/dataset.json: {error}") from error


def open_names(root: Path) -> Sequence[str]:
    """The name of every identifier: `<blank>`, the base puzzles, their augmentations."""
    if is_compact(root):
        return Names(Compact.load(root / FILE))
    path = root / "identifiers.json"
    names = _read_json(path)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DatasetError(f"{path} is no list of names")
    return names


def is_compact(root: Path) -> bool:
    return (root / FILE).exists()


def read_object(path: Path) -> dict[str, Any]:
    found = _read_json(path)
    if not isinstance(found, dict):
        raise DatasetError(f"{path} holds {type(found).__name__}, expected an object")
    return found


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DatasetError(
            f"no file {path}: there is no dataset, or not all of it; {HOW_TO_BUILD}"
            f" {path.parent if path.parent.name not in SPLITS else path.parent.parent}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path} is not JSON: {error}") from error
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error}") from error


def _arrays(root: Path, split: str) -> dict[str, Any]:
    if is_compact(root):
        return arrays_of(Compact.load(root / FILE), split)
    return {name: _open_array(root / split / f"{SET}__{name}.npy") for name in LARGE + SMALL}


def _open_array(path: Path) -> np.ndarray:
    large = path.stem.endswith(LARGE)
    try:
        # The two large arrays stay on disk; index arrays are read often and are small.
        array = np.load(path, mmap_mode="r" if large else None)
    except FileNotFoundError as error:
        raise DatasetError(f"no file {path}; was the dataset built?") from error
    except (ValueError, EOFError) as error:
        raise DatasetError(f"{path} is cut short or no array: {error}") from error
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error}") from error
    dimensions = 2 if large else 1
    if getattr(array, "ndim", 0) != dimensions or array.dtype.kind not in "iu":
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else "no array"
        raise DatasetError(f"{path} is {found}, expected integers in {dimensions} dimension(s)")
    return array
