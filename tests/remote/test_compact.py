"""The compact form stands for the arrays: what is read through it is bit for bit what they hold."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from remote.dataset.batches import Shard, TrainingIteration, iterate_test
from remote.dataset.compact import FILE, Compact, decoded, encoded
from remote.dataset.identifiers import numbered
from remote.dataset.layout import DatasetError, Split, open_names, open_split
from remote.dataset.sets import fingerprint
from remote.pretrain import main as pretrain
from tests.remote.runs import metrics, quiet, words

__all__ = ["quiet"]

SMALL = ("puzzle_identifiers", "puzzle_indices", "group_indices")


@pytest.fixture(scope="module")
def both(build_from_pypi: Callable[..., int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All puzzles of PyPI with two augmentations, as `npy` and as `compact`."""
    root = tmp_path_factory.mktemp("both")
    for form in ("npy", "compact"):
        assert build_from_pypi(root / form, "--num-aug", "2", "--format", form) == 0
    return root


def opened(both: Path, split: str) -> tuple[Split, Split]:
    return open_split(both / "npy", split), open_split(both / "compact", split)


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_example_is_bit_equal(both: Path, split: str) -> None:
    arrays, compact = opened(both, split)
    assert len(arrays.inputs) > 500
    for name in ("inputs", "labels"):
        drawn = getattr(compact, name)
        assert (drawn.shape, drawn.dtype) == (getattr(arrays, name).shape, np.uint8)
        assert np.array_equal(drawn[:], getattr(arrays, name))
    for name in SMALL:
        assert getattr(compact, name).dtype == np.int32
        assert np.array_equal(getattr(compact, name), getattr(arrays, name))
    for name in ("pad_id", "seq_len", "vocab_size", "num_puzzle_identifiers"):
        assert getattr(compact, name) == getattr(arrays, name)
    assert compact.mean_puzzle_examples == arrays.mean_puzzle_examples


@pytest.mark.parametrize("world_size", [1, 4])
def test_whole_iterations_are_bit_equal(both: Path, world_size: int) -> None:
    for number in (1, 2):
        iterations = [
            TrainingIteration(split, batch_size=192, epochs=2, seed=3, number=number)
            for split in opened(both, "train")
        ]
        for rank in range(world_size):
            count = 0
            shard = Shard(rank, world_size)
            ours, theirs = (iteration.batches(shard) for iteration in iterations)
            for ours_batch, theirs_batch in zip(ours, theirs, strict=True):
                assert_equal(ours_batch, theirs_batch)
                count += 1
            assert count == len(iterations[0]) > 40


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_whole_evaluation_is_bit_equal(both: Path, world_size: int) -> None:
    for rank in range(world_size):
        ours, theirs = (
            iterate_test(split, batch_size=96, shard=Shard(rank, world_size))
            for split in opened(both, "test")
        )
        for (ours_batch, ours_rows), (theirs_batch, theirs_rows) in zip(ours, theirs, strict=True):
            assert_equal(ours_batch, theirs_batch)
            assert np.array_equal(ours_rows, theirs_rows)


def test_names_are_those_of_the_arrays(both: Path) -> None:
    names = open_names(both / "compact")
    expected = json.loads((both / "npy" / "identifiers.json").read_text())
    assert list(names) == expected
    assert len(names) == len(expected)
    assert [names[identifier] for identifier in range(len(names))] == expected
    with pytest.raises(IndexError):
        names[len(names)]


def test_both_forms_have_one_fingerprint_and_others_another(
    both: Path, small_compact_set: Path
) -> None:
    assert fingerprint([both / "npy"]) == fingerprint([both / "compact"])
    assert fingerprint([small_compact_set]) != fingerprint([both / "compact"])


def test_both_forms_have_the_same_descriptions(both: Path) -> None:
    for name in ("train/dataset.json", "test/dataset.json", "test_puzzles.json"):
        assert (both / "npy" / name).read_bytes() == (both / "compact" / name).read_bytes()


def test_the_compact_form_is_small_and_a_build_repeats(
    both: Path, build_from_pypi: Callable[..., int], tmp_path: Path
) -> None:
    files = [path for path in (both / "compact").rglob("*") if path.is_file()]
    assert len(files) == 5
    assert sum(path.stat().st_size for path in files) < 4_000_000
    assert build_from_pypi(tmp_path / "again", "--num-aug", "2", "--format", "compact") == 0
    for path in files:
        again = tmp_path / "again" / path.relative_to(both / "compact")
        assert digest(again) == digest(path)


def test_a_puzzle_of_two_subsets_keeps_its_first_number(
    build_from_pypi: Callable[..., int], wheels: Path, tmp_path: Path
) -> None:
    """training and training2 share 391 tasks."""
    subsets = ["--subsets", "training", "training2", "evaluation2"]
    for form in ("npy", "compact"):
        assert build_from_pypi(tmp_path / form, *subsets, "--num-aug", "3", "--format", form) == 0
    names = json.loads((tmp_path / "npy" / "identifiers.json").read_text())
    assert len(set(names)) == len(names)
    arrays, compact = opened(tmp_path, "train")
    assert len(np.unique(arrays.puzzle_identifiers)) == len(arrays.puzzle_identifiers) - 391
    assert np.array_equal(arrays.puzzle_identifiers, compact.puzzle_identifiers)
    assert list(open_names(tmp_path / "compact")) == names


def test_augmentations_survive_their_code() -> None:
    random = np.random.Generator(np.random.Philox(2))
    symmetries = random.integers(0, 8, 1000).astype(np.uint8)
    colours = np.array([[0, *random.permutation(9) + 1] for _ in range(1000)], np.uint8)
    found_symmetries, found_colours = decoded(encoded(symmetries, colours))
    assert np.array_equal(found_symmetries, symmetries)
    assert np.array_equal(found_colours, colours)
    assert encoded(np.array([3]), np.array([[0, 7, 6, 8, 3, 1, 4, 9, 5, 2]])) == 3_76831495


def test_numbers_follow_the_first_appearance(small_compact_set: Path) -> None:
    compact = Compact.load(small_compact_set / FILE)
    assert numbered(compact).tolist() == list(range(1, len(compact.augmentations) + 1))


@pytest.mark.parametrize("keep", [0, 100, -1, -5000])
def test_a_file_that_is_cut_short_is_refused(
    keep: int, small_compact_set: Path, tmp_path: Path
) -> None:
    content = (small_compact_set / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(content[:keep])
    with pytest.raises(DatasetError, match="cut short or damaged"):
        Compact.load(tmp_path / FILE)


def test_a_run_is_the_same_on_either_form(
    small_set: Path, small_compact_set: Path, tmp_path: Path
) -> None:
    """The trainer and the evaluator do not know which one they were given."""
    paths = {"npy": small_set, "compact": small_compact_set}
    for form, data in paths.items():
        assert pretrain(words(data, tmp_path / form)) == 0
    losses = {form: [line["loss"] for line in metrics(tmp_path / form, "step")] for form in paths}
    assert len(losses["npy"]) > 3
    assert losses["npy"] == losses["compact"]
    evals = [
        [{name: line[name] for name in line if name.startswith(("all/", "ARC/"))} for line in found]
        for found in (metrics(tmp_path / form, "eval") for form in paths)
    ]
    assert evals[0] == evals[1]
    for form in paths:
        (*_, submission) = sorted((tmp_path / form).glob("evaluator_ARC_step_*/submission.json"))
        assert digest(submission) == digest(
            tmp_path / "npy" / submission.relative_to(tmp_path / form)
        )


def assert_equal(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype == np.int32
        assert np.array_equal(array, theirs[name])


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
