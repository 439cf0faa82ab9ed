"""The stream must be numpy's, draw for draw: a dataset's bytes depend on it."""

import numpy as np

from remote.dataset.augment import draw_trials
from remote.dataset.grids import augmented_name
from remote.dataset.legacy_random import LegacyRandom, limits


def test_mixed_draws_are_those_of_numpys_global_stream() -> None:
    random, reference = LegacyRandom(7), np.random.RandomState(7)
    for bound in [1, 2, 3, 8, 30, 31, 5, 1, 1000] * 20_000:  # more than one block of words
        assert random.below(bound) == reference.randint(0, bound)


def test_a_pattern_of_draws_is_one_draw_after_the_other() -> None:
    random, reference = LegacyRandom(9), np.random.RandomState(9)
    bounds = [3, 1, 30, 8, 1, 17]
    drawn = bytearray()
    for _ in range(10_000):
        random.draw(limits(bounds), drawn)
    assert list(drawn) == [reference.randint(0, n) for _ in range(10_000) for n in bounds]


def test_a_shuffle_is_numpys() -> None:
    random, reference = LegacyRandom(3), np.random.RandomState(3)
    for _ in range(50):
        ours, theirs = list(range(37)), list(range(37))
        random.shuffle(ours)
        reference.shuffle(theirs)
        assert ours == theirs


def test_the_first_augmentations_after_seed_42_have_upstreams_names() -> None:
    symmetries, colours = draw_trials(LegacyRandom(42), 3)
    names = [
        augmented_name("x", symmetry, "".join(map(str, row)))
        for symmetry, row in zip(symmetries, colours, strict=True)
    ]
    assert names == ["x|||t6|||0926183754", "x|||t2|||0129645837", "x|||t4|||0531796482"]
