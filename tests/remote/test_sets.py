"""Several datasets as one: in upstream's order, and only where their identifiers agree."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from remote.dataset.batches import (
    Shard,
    TrainingIteration,
    evaluation_batches,
    iterate_test,
    nominal_steps,
)
from remote.dataset.layout import DatasetError, open_split
from remote.dataset.sets import held_out_puzzles, names_of, open_splits


def test_sets_are_taken_one_after_the_other_with_running_seeds(
    small_set: Path, second_set: Path
) -> None:
    joined = open_splits([small_set, second_set], "train")
    for number in (1, 2, 3):
        ours = TrainingIteration(joined, batch_size=8, epochs=3, seed=5, number=number)
        puzzles = [ours.rows(batch)[1].tolist() for batch in range(len(ours))]
        expected, before = [], 0
        for index, root in enumerate((small_set, second_set)):
            alone = open_split(root, "train")
            # Upstream counts one up for each set of each iteration.
            counted = 2 * (number - 1) + index + 1
            there = TrainingIteration(alone, batch_size=8, epochs=3, seed=5, number=counted)
            for batch in range(len(there)):
                expected.append((there.rows(batch)[1] + before).tolist())
            before += len(alone.puzzle_identifiers)
        assert puzzles == expected


def test_rows_of_a_joined_set_are_those_of_its_parts(small_set: Path, second_set: Path) -> None:
    joined = open_splits([small_set, second_set], "train")
    parts = [open_split(root, "train") for root in (small_set, second_set)]
    assert np.array_equal(joined.inputs[:], np.concatenate([part.inputs[:] for part in parts]))
    mixed = np.array([len(joined.inputs) - 1, 0, len(parts[0].inputs), 3])
    assert np.array_equal(joined.labels[mixed], joined.labels[:][mixed])
    iteration = TrainingIteration(joined, batch_size=8, epochs=3, seed=0, number=1)
    for batch in iteration.batches(Shard()):
        first_set = batch["puzzle_identifiers"] < 25
        assert first_set.all() or not first_set.any()


def test_metadata_is_weighed_by_puzzles(small_set: Path, second_set: Path) -> None:
    joined = open_splits([small_set, second_set], "train")
    parts = [open_split(root, "train") for root in (small_set, second_set)]
    assert joined.groups == sum(part.groups for part in parts)
    puzzles = [len(part.puzzle_identifiers) for part in parts]
    means = [part.mean_puzzle_examples for part in parts]
    assert joined.mean_puzzle_examples == pytest.approx(np.average(means, weights=puzzles))
    assert joined.num_puzzle_identifiers == max(part.num_puzzle_identifiers for part in parts)
    steps = int(7 * joined.groups * joined.mean_puzzle_examples / 8)
    assert nominal_steps(joined, batch_size=8, epochs=7) == steps


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_evaluation_ends_each_set_with_its_own_short_batch(
    world_size: int, small_set: Path, second_set: Path
) -> None:
    joined = open_splits([small_set, second_set], "test")
    sizes = [len(open_split(root, "test").inputs) for root in (small_set, second_set)]
    assert evaluation_batches(joined, batch_size=8) == sum(-(-size // 8) for size in sizes)
    met = []
    for rank in range(world_size):
        batches = list(iterate_test(joined, batch_size=8, shard=Shard(rank, world_size)))
        assert len(batches) == evaluation_batches(joined, batch_size=8)
        for batch, examples in batches:
            real = examples >= 0
            assert np.array_equal(batch["inputs"][real], joined.inputs[examples[real]])
            met += examples[real].tolist()
    assert sorted(met) == list(range(sum(sizes)))


def test_names_and_held_out_puzzles_are_joined(small_set: Path, second_set: Path) -> None:
    first = json.loads((small_set / "identifiers.json").read_text())
    names = names_of([small_set, second_set])
    assert list(names[:25]) == first
    assert "<blank>" not in names[25:]
    assert len(held_out_puzzles([small_set, second_set])) == 8


def test_one_set_twice_is_allowed(small_set: Path, small_compact_set: Path) -> None:
    assert open_splits([small_set, small_compact_set], "train").groups == 16


def test_sets_whose_identifiers_mean_different_puzzles_are_refused(
    small_set: Path, other_puzzles: Path
) -> None:
    with pytest.raises(DatasetError, match=r"arc is built for other identifiers than .*: number"):
        open_splits([small_set, other_puzzles], "train")


def test_a_test_set_of_unknown_identifiers_is_refused(
    small_set: Path, small_compact_set: Path, second_set: Path
) -> None:
    open_splits([small_compact_set], "test", trained_on=[small_set])
    with pytest.raises(DatasetError, match=r"built for other identifiers .* there it is none"):
        open_splits([second_set], "test", trained_on=[small_set])


def test_a_set_of_another_vocabulary_is_refused(small_set: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(small_set, tmp_path / "copy"))
    description = json.loads((copy / "train" / "dataset.json").read_text())
    description["vocab_size"] = 14
    (copy / "train" / "dataset.json").write_text(json.dumps(description))
    with pytest.raises(DatasetError, match=r"copy/train .* vocab_size 14, expected 900, 12") as bad:
        open_splits([copy], "train")
    assert f"python -m remote.dataset.verify {copy}" in str(bad.value)


def test_an_absent_set_is_named_with_the_command_that_builds_it(tmp_path: Path) -> None:
    with pytest.raises(DatasetError) as absent:
        open_splits([tmp_path / "none"], "train")
    assert f"no file {tmp_path}/none/train/dataset.json" in str(absent.value)
    assert f"build_arc_dataset --output-dir {tmp_path}/none" in str(absent.value)


@pytest.mark.parametrize("name", ["inputs", "puzzle_indices"])
def test_an_incomplete_set_is_refused_before_training(
    name: str, small_set: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(small_set, tmp_path / "copy"))
    path = copy / "train" / f"all__{name}.npy"
    np.save(path, np.load(path)[:-1])
    with pytest.raises(DatasetError, match=r"no usable dataset: .* expected"):
        open_splits([copy], "train")
    path.unlink()
    with pytest.raises(DatasetError, match=f"no file {path}"):
        open_splits([copy], "train")
