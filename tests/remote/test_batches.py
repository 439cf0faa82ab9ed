import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from remote.dataset.batches import Shard, TrainingIteration, iterate_test, nominal_steps
from remote.dataset.layout import Split, open_split


@pytest.fixture(scope="module")
def split(small_set: Path) -> Split:
    return open_split(small_set, "train")


def iteration(split: Split, **changes: int) -> TrainingIteration:
    settings = {"batch_size": 8, "epochs": 3, "seed": 0, "number": 1} | changes
    return TrainingIteration(split, **settings)


def test_packing_is_that_of_one_draw_per_group(split: Split) -> None:
    """The algorithm of the facts, written with a loop, for many seeds and batch sizes."""
    for seed in range(5):
        for batch_size in (4, 7, 16):
            ours = iteration(split, seed=seed, batch_size=batch_size, epochs=5)
            expected = naive_batches(split, seed + 1, batch_size, 5)
            assert len(ours) == len(expected)
            for number, puzzles in enumerate(expected):
                assert ours.rows(number)[1].tolist() == puzzles


def test_a_long_iteration_takes_few_bytes_a_draw(split: Split) -> None:
    """With `eval_interval=null` it is a whole run: 128 million of them, in every process."""
    epochs = 400_000 // split.groups
    iteration(split)  # what is read once is read now
    tracemalloc.start()
    try:
        iteration(split, epochs=epochs, batch_size=512)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / (epochs * split.groups) < 28


def test_a_batch_holds_distinct_pairs_of_each_puzzle(split: Split) -> None:
    packed = iteration(split)
    for number in range(len(packed)):
        examples, puzzles = packed.rows(number)
        assert len(set(examples.tolist())) == len(examples) == 8
        owners = np.searchsorted(split.puzzle_indices, examples, side="right") - 1
        assert (owners == puzzles).all()


def test_a_cut_leaves_each_pair_of_a_puzzle_equally_often(split: Split) -> None:
    left = np.zeros(len(split.inputs))
    cut = np.zeros(len(split.inputs))
    for seed in range(400):
        packed = iteration(split, seed=seed, batch_size=7)
        for number in range(len(packed)):
            examples, puzzles = packed.rows(number)
            start, end = split.puzzle_indices[puzzles[-1]], split.puzzle_indices[puzzles[-1] + 1]
            if (puzzles == puzzles[-1]).sum() < end - start:
                left[examples[puzzles == puzzles[-1]]] += 1
                cut[start:end] += (puzzles == puzzles[-1]).sum() / (end - start)
    often = cut > 100
    assert often.sum() > 20
    assert np.abs(left[often] / cut[often] - 1).max() < 0.3


def test_a_batch_depends_on_seed_and_number_only(split: Split) -> None:
    whole = [batch["inputs"] for batch in iteration(split).batches(Shard())]
    np.random.seed(123)
    later = [batch["inputs"] for batch in iteration(split).batches(Shard(), skip=2)]
    assert len(later) == len(whole) - 2
    assert all((a == b).all() for a, b in zip(whole[2:], later, strict=True))
    assert (whole[0] != _inputs(iteration(split, number=2))[0]).any()


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_ranks_shares_are_the_batch(split: Split, world_size: int) -> None:
    whole = _inputs(iteration(split))
    shares = [_inputs(iteration(split), Shard(r, world_size)) for r in range(world_size)]
    for batch, *parts in zip(whole, *shares, strict=True):
        assert (np.concatenate(parts) == batch).all()


def test_labels_of_padding_are_ignored_and_nothing_else(split: Split) -> None:
    batch = next(iteration(split).batches(Shard()))
    examples = iteration(split).rows(0)[0]
    stored = split.labels[examples]
    assert ((batch["labels"] == -100) == (stored == 0)).all()
    assert (batch["labels"][stored != 0] == stored[stored != 0]).all()


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_evaluation_meets_every_example_once(small_set: Path, world_size: int) -> None:
    test = open_split(small_set, "test")
    met: list[int] = []
    for rank in range(world_size):
        for batch, examples in iterate_test(test, batch_size=8, shard=Shard(rank, world_size)):
            assert len(batch["inputs"]) == 8 // world_size
            blank = examples < 0
            assert (batch["labels"][blank] == -100).all()
            assert not batch["puzzle_identifiers"][blank].any()
            assert (batch["inputs"][~blank] == test.inputs[examples[~blank]]).all()
            met += examples[~blank].tolist()
    assert sorted(met) == list(range(len(test.inputs)))


def test_nominal_steps_are_upstreams_formula(split: Split) -> None:
    pairs = split.groups * split.mean_puzzle_examples
    assert nominal_steps(split, batch_size=8, epochs=10) == int(10 * pairs / 8)


def naive_batches(split: Split, key: int, batch_size: int, epochs: int) -> list[list[int]]:
    random = np.random.Generator(np.random.Philox(seed=key))
    order = np.concatenate([random.permutation(split.groups) for _ in range(epochs)])
    batches, batch = [], []
    for group in order:
        puzzle = int(random.integers(split.group_indices[group], split.group_indices[group + 1]))
        size = int(split.puzzle_indices[puzzle + 1] - split.puzzle_indices[puzzle])
        batch += [puzzle] * min(size, batch_size - len(batch))
        if len(batch) == batch_size:
            batches.append(batch)
            batch = []
    return batches


def _inputs(packed: TrainingIteration, shard: Shard = Shard()) -> list[np.ndarray]:  # noqa: B008
    return [batch["inputs"] for batch in packed.batches(shard)]
