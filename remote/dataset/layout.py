"""The files of a dataset, and how to open them."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SPLITS = ("train", "test")
SET = "all"
ARRAYS = ("inputs", "labels", "puzzle_identifiers", "puzzle_indices", "group_indices")
MANIFEST = "manifest.json"


class DatasetError(Exception):
    """The dataset is not there, not complete, or does not fit."""


@dataclass(frozen=True, slots=True)
class Split:
    """One opened split: N examples of P puzzles (augmentations) in G groups (base puzzles)."""

    pad_id: int
    blank_identifier_id: int
    vocab_size: int
    seq_len: int
    num_puzzle_identifiers: int
    mean_puzzle_examples: float
    inputs: np.ndarray  # uint8 [N, seq_len], memory-mapped
    labels: np.ndarray  # uint8 [N, seq_len], memory-mapped
    puzzle_identifiers: np.ndarray  # int32 [P]
    puzzle_indices: np.ndarray  # int32 [P + 1]: offsets into the examples
    group_indices: np.ndarray  # int32 [G + 1]: offsets into the puzzles

    @property
    def groups(self) -> int:
        return len(self.group_indices) - 1


def open_split(root: Path, split: str) -> Split:
    directory = root / split
    description = read_json(directory / "dataset.json")
    if description.get("sets") != [SET]:
        raise DatasetError(f"{directory}/dataset.json: sets are {description.get('sets')}")
    arrays = {name: _open_array(directory / f"{SET}__{name}.npy") for name in ARRAYS}
    try:
        return Split(
            pad_id=int(description["pad_id"]),
            blank_identifier_id=int(description["blank_identifier_id"]),
            vocab_size=int(description["vocab_size"]),
            seq_len=int(description["seq_len"]),
            num_puzzle_identifiers=int(description["num_puzzle_identifiers"]),
            mean_puzzle_examples=float(description["mean_puzzle_examples"]),
            **arrays,
        )
    except KeyError as error:
        raise DatasetError(f"{directory}/dataset.json has no {error}") from error


def read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise DatasetError(f"no file {path}; was the dataset built?") from error
    except json.JSONDecodeError as error:
        raise DatasetError(f"{path} is not JSON: {error}") from error


def _open_array(path: Path) -> np.ndarray:
    try:
        # The two large arrays stay on disk; index arrays are read often and are small.
        large = path.stem.endswith(("inputs", "labels"))
        return np.load(path, mmap_mode="r" if large else None)
    except FileNotFoundError as error:
        raise DatasetError(f"no file {path}; was the dataset built?") from error
    except (ValueError, EOFError) as error:
        raise DatasetError(f"{path} is cut short or no array: {error}") from error
