"""Each way a set can be broken is found, with what was found and what was expected."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from remote.dataset.compact import FILE
from remote.dataset.verify import main as verify


@pytest.fixture
def copy(small_set: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_set, tmp_path / "copy"))


def test_a_complete_set_is_accepted(small_set: Path, capsys) -> None:
    assert verify([str(small_set)]) == 0
    assert "digests as in the manifest" in capsys.readouterr().out


def test_a_set_of_another_builder_is_accepted(copy: Path) -> None:
    (copy / "manifest.json").unlink()
    for split in ("train", "test"):  # URM's and HRM's builders write no total_puzzles
        edit_json(copy / split / "dataset.json", lambda content: content.pop("total_puzzles"))
    assert verify([str(copy)]) == 0


@pytest.fixture
def compact_copy(small_compact_set: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_compact_set, tmp_path / "copy"))


def test_a_complete_compact_set_is_accepted(small_compact_set: Path, capsys) -> None:
    assert verify([str(small_compact_set)]) == 0
    said = capsys.readouterr().out
    assert "train: 99 examples, 24 puzzles, 8 groups" in said
    assert "is complete (compact, digests as in the manifest)" in said


def test_a_set_that_is_not_there_is_refused(tmp_path: Path, capsys) -> None:
    assert verify([str(tmp_path / "none")]) == 1
    assert "verify: there is no directory" in capsys.readouterr().out


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def edit_array(path: Path, change: Callable[[np.ndarray], None]) -> None:
    array = np.load(path)
    change(array)
    np.save(path, array)


def edit_json(path: Path, change: Callable[[dict], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


BREAKAGES = {
    "no test split": (lambda d: shutil.rmtree(d / "test"), "found ['train/dataset.json']"),
    "cut array": (lambda d: cut_short(d / "train/all__inputs.npy"), "cut short"),
    "missing array": (lambda d: (d / "test/all__labels.npy").unlink(), "no file"),
    "example gone": (
        lambda d: np.save(d / "test/all__labels.npy", np.load(d / "test/all__labels.npy")[:-1]),
        "labels is uint8",
    ),
    "identifier out of range": (
        lambda d: edit_array(
            d / "train/all__puzzle_identifiers.npy", lambda a: a.__setitem__(3, 999)
        ),
        "..999, expected within",
    ),
    "indices end early": (
        lambda d: edit_array(
            d / "train/all__puzzle_indices.npy", lambda a: a.__setitem__(-1, a[-1] - 1)
        ),
        "puzzle_indices runs from 0 to",
    ),
    "indices fall": (
        lambda d: edit_array(d / "train/all__group_indices.npy", lambda a: a.__setitem__(2, 0)),
        "does not rise",
    ),
    "token out of range": (
        lambda d: edit_array(d / "train/all__labels.npy", lambda a: a.__setitem__((0, 0), 12)),
        "holds token 12, expected less than 12",
    ),
    "wrong vocabulary": (
        lambda d: edit_json(d / "train/dataset.json", lambda c: c.update(vocab_size=11)),
        "expected 900, 12",
    ),
    "wrong group count": (
        lambda d: edit_json(d / "train/dataset.json", lambda c: c.update(total_groups=9)),
        "total_groups 9, the arrays say 8",
    ),
    "name missing": (
        lambda d: edit_json(d / "identifiers.json", lambda c: c.pop()),
        "24 identifiers are named, train/dataset.json expects 25",
    ),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_set_is_refused(breakage: str, copy: Path, capsys) -> None:
    damage, message = BREAKAGES[breakage]
    (copy / "manifest.json").unlink()  # the arrays alone must tell
    damage(copy)
    assert verify([str(copy)]) == 1
    assert message in capsys.readouterr().out


def test_one_changed_cell_is_found_by_the_manifest(copy: Path, capsys) -> None:
    edit_array(copy / "train/all__inputs.npy", lambda a: a.__setitem__((5, 5), 7 - a[5, 5]))
    assert verify([str(copy)]) == 1
    assert "train/all__inputs.npy has sha256" in capsys.readouterr().out


def edit_compact(directory: Path, **changes: Callable[[np.ndarray], object]) -> None:
    """`change` edits an array in place, or returns the one to take instead."""
    with np.load(directory / FILE) as stored:
        arrays = dict(stored)
    for name, change in changes.items():
        changed = change(arrays[name])
        arrays[name] = arrays[name] if changed is None else changed
    np.savez(directory / FILE, **arrays)


COMPACT_BREAKAGES = {
    "cut short": (lambda d: cut_short(d / FILE), "compact.npz is cut short or damaged"),
    "file gone": (lambda d: (d / FILE).unlink(), "no file"),
    "no test split": (lambda d: shutil.rmtree(d / "test"), "found ['train/dataset.json']"),
    "a pair's place gone": (
        lambda d: edit_compact(d, shifts=lambda a: a[:-1]),
        "shifts has 98, expected 99",
    ),
    "a puzzle gone": (
        lambda d: edit_compact(d, augmentations=lambda a: a[:-1]),
        "augmentations has 23, expected 24",
    ),
    "a grid gone": (lambda d: edit_compact(d, sizes=lambda a: a[:-1]), "sizes has"),
    "cells gone": (lambda d: edit_compact(d, cells=lambda a: a[:-1]), "cells has"),
    "no colour": (
        lambda d: edit_compact(d, cells=lambda a: a.__setitem__(4, 10)),
        "cells hold colour 10, expected at most 9",
    ),
    "no size": (
        lambda d: edit_compact(d, sizes=lambda a: a.__setitem__((0, 0), 31)),
        "sizes span",
    ),
    "no permutation": (
        lambda d: edit_compact(d, augmentations=lambda a: a.__setitem__(2, 1_11223344)),
        "augmentation 2 is 111223344, no symmetry",
    ),
    "out of the canvas": (
        lambda d: edit_compact(d, shifts=lambda a: a.__setitem__(7, 899)),
        "training example 7 stands at row 29, column 29, where",
    ),
    "other counts": (
        lambda d: edit_json(d / "train/dataset.json", lambda c: c.update(total_puzzles=23)),
        "total_puzzles 23, the arrays say 24",
    ),
    "other identifiers": (
        lambda d: edit_json(d / "test/dataset.json", lambda c: c.update(num_puzzle_identifiers=9)),
        "puzzle_identifiers span 13..24, expected within 0..8",
    ),
}


@pytest.mark.parametrize("breakage", COMPACT_BREAKAGES)
def test_a_broken_compact_set_is_refused(breakage: str, compact_copy: Path, capsys) -> None:
    damage, message = COMPACT_BREAKAGES[breakage]
    (compact_copy / "manifest.json").unlink()
    damage(compact_copy)
    assert verify([str(compact_copy)]) == 1
    assert message in capsys.readouterr().out


def test_one_changed_place_is_found_by_the_manifest(compact_copy: Path, capsys) -> None:
    edit_compact(compact_copy, shifts=lambda a: a.__setitem__(0, a[0] ^ 1))
    assert verify([str(compact_copy)]) == 1
    assert f"{FILE} has sha256" in capsys.readouterr().out
