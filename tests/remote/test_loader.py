import threading
from pathlib import Path

import numpy as np
import pytest

from remote.dataset.batches import Shard, TrainingIteration
from remote.dataset.layout import Split, open_split
from remote.dataset.loader import Loader


@pytest.fixture(scope="module")
def split(small_set: Path) -> Split:
    return open_split(small_set, "train")


@pytest.fixture
def plans(split: Split) -> "Plans":
    return Plans(split)


class Plans:
    """Makes iterations, and remembers which, and in which thread."""

    def __init__(self, split: Split) -> None:
        self._split, self.made, self.event = split, [], threading.Event()

    def __call__(self, number: int) -> TrainingIteration:
        self.made.append((number, threading.get_ident()))
        if number == 2:
            self.event.set()
        return TrainingIteration(self._split, batch_size=8, epochs=4, seed=1, number=number)


def expected(plans: Plans, number: int, shard: Shard, skip: int = 0) -> list[np.ndarray]:
    return [batch["inputs"] for batch in plans(number).batches(shard, skip=skip)]


def same(batches: list[np.ndarray], others: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(batches, others, strict=True))


def test_iterations_come_as_they_are_made_alone(plans: Plans) -> None:
    shard = Shard(1, 2)
    loader = Loader(plans, shard, last=3)
    for number in (1, 2, 3):
        count, batches = loader.iteration(number)
        found = [batch["inputs"] for batch in batches]
        assert count == len(found) > 5
        assert same(found, expected(plans, number, shard))
    loader.close()


def test_one_thread_makes_all_and_plans_ahead(plans: Plans) -> None:
    loader = Loader(plans, Shard(), last=2)
    list(loader.iteration(1)[1])
    assert plans.event.wait(timeout=10), "the second iteration is planned while nobody asks for it"
    list(loader.iteration(2)[1])
    loader.close()
    assert [number for number, _ in plans.made] == [1, 2]
    assert len({thread for _, thread in plans.made}) == 1
    assert plans.made[0][1] != threading.get_ident()


def test_a_resumed_run_starts_in_the_middle(plans: Plans) -> None:
    loader = Loader(plans, Shard(), last=3)
    count, batches = loader.iteration(2, skip=3)
    found = [batch["inputs"] for batch in batches]
    assert len(found) == count - 3
    assert same(found, expected(plans, 2, Shard(), skip=3))
    assert same([b["inputs"] for b in loader.iteration(3)[1]], expected(plans, 3, Shard()))
    loader.close()


def test_an_iteration_that_was_left_early_can_be_taken_again(plans: Plans) -> None:
    loader = Loader(plans, Shard(), last=2)
    list(loader.iteration(1)[1])
    for _ in range(2):
        _, batches = loader.iteration(2)
        assert np.array_equal(next(batches)["inputs"], expected(plans, 2, Shard())[0])
    _, never_begun = loader.iteration(1)
    _, batches = loader.iteration(1)
    assert same([batch["inputs"] for batch in batches], expected(plans, 1, Shard()))
    assert list(never_begun) == []
    loader.close()


def test_closing_ends_the_thread(plans: Plans) -> None:
    before = threading.active_count()
    loader = Loader(plans, Shard(), last=2)
    _, batches = loader.iteration(1)
    next(batches)
    assert threading.active_count() == before + 1
    loader.close()
    loader.close()
    assert threading.active_count() == before
    assert list(batches) == []


def test_an_error_in_a_plan_is_raised_where_its_batches_are_asked_for(split: Split) -> None:
    def plan(number: int) -> TrainingIteration:
        raise OSError(f"iteration {number} cannot be read")

    with pytest.raises(OSError, match="iteration 1 cannot be read"):
        Loader(plan, Shard(), last=1).iteration(1)
