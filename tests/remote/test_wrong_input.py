"""Whatever the builder and the verifier are given: one sentence, and a status."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from remote.dataset.build_arc_dataset import main as build
from remote.dataset.sets import open_splits
from remote.dataset.split import DatasetError
from remote.dataset.verify import main as verify

GRID = [[1, 2], [3, 4]]
PUZZLE = {"train": [{"input": GRID, "output": GRID}], "test": [{"input": GRID}]}


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))


def edit(path: Path, **changes: object) -> None:
    write_json(path, json.loads(path.read_text()) | changes)


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "bytes": (lambda d: (d / "train/dataset.json").write_bytes(b"\xff\xfe"), "is not JSON"),
    "a list": (lambda d: write_json(d / "train/dataset.json", []), "expected an object"),
    "no number": (lambda d: edit(d / "train/dataset.json", seq_len="many"), "'many'"),
    "null": (lambda d: edit(d / "train/dataset.json", total_groups=None), "total_groups None"),
    "names": (lambda d: write_json(d / "identifiers.json", 7), "is no list of names"),
    "puzzles": (lambda d: write_json(d / "test_puzzles.json", [3]), "expected an object"),
    "manifest": (lambda d: write_json(d / "manifest.json", {"files": 3}), "lists no files"),
    "digests": (
        lambda d: write_json(d / "manifest.json", {"files": {"identifiers.json": {}}}),
        "lists no files with their bytes",
    ),
    "texts": (
        lambda d: np.save(d / "train/all__puzzle_identifiers.npy", np.array(["a"] * 24)),
        "expected integers in 1 dimension",
    ),
    "floats": (
        lambda d: np.save(d / "train/all__puzzle_indices.npy", np.arange(25.0)),
        "expected integers in 1 dimension",
    ),
    "a table": (
        lambda d: np.save(d / "train/all__group_indices.npy", np.zeros((3, 3), int)),
        "expected integers in 1 dimension",
    ),
    "a number": (
        lambda d: np.save(d / "train/all__inputs.npy", np.uint8(3)),
        "expected integers in 2 dimension",
    ),
    "a folder": (lambda d: folder_instead(d / "train/all__labels.npy"), "cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_set_of_nonsense_is_refused(damage: str, small_set: Path, tmp_path: Path, capsys) -> None:
    data = Path(shutil.copytree(small_set, tmp_path / "data"))
    (data / "manifest.json").unlink()
    act, message = DAMAGES[damage]
    act(data)
    assert verify([str(data)]) == 1
    assert message in capsys.readouterr().out
    if damage in ("bytes", "a list", "no number", "texts", "floats", "a table", "a number"):
        with pytest.raises(DatasetError, match=r"verify|expected|JSON|many"):
            open_splits([data], "train")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("xx", "cannot be read"),
        ([1], "expected puzzles by name"),
        ({}, "there is no puzzle in training"),
        ({"a": 7}, "the test pairs of a are not as ARC's"),
        ({"a": {"train": []}}, "the test pairs of a are not as ARC's: KeyError('test')"),
        ({"a": PUZZLE | {"train": "abc"}}, "puzzle a: its pairs are not as ARC's"),
        ({"a": PUZZLE | {"train": [{"x": 1}]}}, "puzzle a: its pairs are not as ARC's"),
        ({"a": PUZZLE | {"train": [{"input": None, "output": GRID}]}}, "cells of 0-9"),
        ({"a": PUZZLE | {"train": [{"input": [["x"]], "output": GRID}]}}, "cells of 0-9"),
        ({"a": PUZZLE | {"train": [{"input": [[0.5]], "output": GRID}]}}, "cells of 0-9"),
        ({"a": PUZZLE | {"train": [{"input": [[]], "output": GRID}]}}, "cells of 0-9"),
        ({"a": PUZZLE | {"train": [{"input": [[1, 2], [3]], "output": GRID}]}}, "puzzle a: "),
    ],
)
def test_puzzles_of_nonsense_are_refused(
    content: object, message: str, tmp_path: Path, capsys
) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / "p_training_challenges.json").write_text(text)
    words = ["--input-file-prefix", str(tmp_path / "p"), "--output-dir", str(tmp_path / "out")]
    words += ["--subsets", "training", "--test-set-name", "training", "--num-aug", "1"]
    assert build(words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
