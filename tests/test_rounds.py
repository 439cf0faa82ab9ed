"""Many boxes to be ended at once: each is asked for in time, whatever the lists and others do."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from gpurun.clock import Deadline
from gpurun.errors import ProviderError
from gpurun.keeper.charges import Charge
from gpurun.keeper.rounds import MANY_WITHIN_S, THREADS, Rounds
from gpurun.model import Instance, InstanceState
from gpurun.proof import Evidence, Verdict
from tests.fakecloud import FakeClock, FakeCloud


class Crowded(FakeCloud):
    """Every box is there before the test begins; what it is asked is counted."""

    def __init__(self, clock: FakeClock, size: int, name: str = "fake") -> None:
        super().__init__(clock)
        self.name = name
        self.lists = 0
        for number in range(size):
            box = Instance(
                provider=name,
                id=str(number),
                label=f"gpurun-owner1-r{number:07}-nonce1",
                state=InstanceState.RUNNING,
                usd_per_hour=Decimal(1),
                created_at=clock.now(),
                gpu=None,
                gpu_count=0,
            )
            self.boxes[box.id] = box

    def instances(self) -> list[Instance]:
        self.lists += 1
        return super().instances()


class AtOnce(Crowded):
    """One that ends many by one request."""

    refuses = False
    silent: threading.Event | None = None

    def __init__(self, clock: FakeClock, size: int) -> None:
        super().__init__(clock, size)
        self.requests: list[list[str]] = []

    def destroy_many(self, instance_ids: Sequence[str]) -> None:
        self.requests.append(list(instance_ids))
        if self.refuses:
            raise ProviderError("fake: not at once")
        if self.silent is not None:
            self.silent.wait()
        if not self.destroy_does_nothing:
            for each in instance_ids:
                self.boxes.pop(each, None)


class Ending:
    """The rounds of a keeper, and what has come of them."""

    def __init__(self, clock: FakeClock, *clouds: Crowded) -> None:
        self.clock = clock
        self.clouds = {cloud.name: cloud for cloud in clouds}
        self.boxes = [box for cloud in clouds for box in cloud.boxes.values()]
        self.gone: set[str] = set()
        self.unknown: set[str] = set()  # ids that no list has shown lately
        self.rounds = Rounds(
            self.clouds.__getitem__,
            clock,
            self._note,
            lambda _name, evidence: evidence.instance_id not in self.unknown,
        )

    def tick(self) -> None:
        for box in self.boxes:
            if f"{box.provider}-{box.id}" not in self.gone:
                self.rounds.step(self._charge(box))
        self.rounds.begin()

    def settled(self) -> bool:
        return until(lambda: not self.rounds.working())

    def _note(self, charge: Charge, _evidence: Evidence, verdict: Verdict) -> None:
        if verdict.gone:
            self.gone.add(f"{charge.provider}-{charge.instance_id}")

    def _charge(self, box: Instance) -> Charge:
        now = self.clock.now()
        minute = timedelta(minutes=1)
        return Charge(
            label=f"{box.provider}-{box.label}" if box.provider != "fake" else box.label,
            provider=box.provider,
            account="fake-account",
            instance_id=box.id,
            seq=1,
            fires_at=now - minute,
            ends_at=now,
            timer=None,
            attempt=None,
        )


def until(what: Callable[[], bool], seconds: float = 20) -> bool:
    deadline = Deadline(seconds, poll_s=0.01)
    while not deadline.passed():
        if what():
            return True
    return False


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """What never comes while a test runs."""
    event = threading.Event()
    yield event
    event.set()


def test_a_thousand_that_are_due_together_take_one_request_and_two_lists(clock: FakeClock) -> None:
    cloud = AtOnce(clock, 1000)
    ending = Ending(clock, cloud)
    ending.tick()
    assert ending.settled()
    assert [len(ids) for ids in cloud.requests] == [1000]
    assert cloud.boxes == {}
    assert not ending.gone, "one list proves nothing"
    clock.advance(cloud.traits.settle_window_s)  # no list had ever shown them
    ending.tick()
    assert ending.settled()
    assert len(ending.gone) == 1000
    assert (cloud.lists, cloud.destroys) == (2, [])


def test_one_box_is_asked_for_by_itself(clock: FakeClock) -> None:
    cloud = AtOnce(clock, 1)
    ending = Ending(clock, cloud)
    ending.tick()
    assert ending.settled()
    assert (cloud.requests, cloud.destroys) == ([], ["0"])


def test_what_no_list_has_shown_lately_is_looked_at_before_it_is_ended(clock: FakeClock) -> None:
    cloud = AtOnce(clock, 3)
    ending = Ending(clock, cloud)
    cloud.boxes["1"] = replace(
        cloud.boxes["1"], label="somebody-elses", created_at=clock.now() + timedelta(days=1)
    )
    ending.unknown = {"0", "1"}
    for charge in map(ending._charge, ending.boxes):
        bought = replace(charge.evidence(clock), created_at=clock.now())
        ending.rounds.step(charge)
        ending.rounds._cases[charge.key].evidence = bought
    ending.rounds.begin()
    assert ending.settled()
    assert cloud.requests == []
    assert sorted(cloud.destroys) == ["0", "2"]
    assert set(cloud.boxes) == {"1"}


@pytest.mark.parametrize("how", ["refused", "not answered"])
def test_where_no_answer_for_all_comes_each_is_asked_for_by_itself(
    clock: FakeClock, never: threading.Event, how: str
) -> None:
    cloud = AtOnce(clock, 20)
    cloud.refuses = how == "refused"
    cloud.silent = None if cloud.refuses else never
    ending = Ending(clock, cloud)
    ending.tick()
    assert until(lambda: len(cloud.destroys) == 20, MANY_WITHIN_S + 5)
    assert cloud.boxes == {}
    assert ending.settled()


def test_a_late_answer_for_all_counts_and_what_it_has_not_done_is_done_singly(
    clock: FakeClock,
) -> None:
    cloud = AtOnce(clock, 5)
    cloud.destroy_does_nothing = True
    ending = Ending(clock, cloud)
    ending.tick()
    assert ending.settled()
    assert (len(cloud.requests), cloud.destroys) == (1, [])
    cloud.destroy_does_nothing = False
    clock.advance(2)
    ending.tick()
    assert ending.settled()
    assert len(cloud.requests) == 1, "its word is not taken twice"
    assert len(cloud.destroys) == 5


def test_no_box_waits_for_the_list_of_another(clock: FakeClock, never: threading.Event) -> None:
    class Long(Crowded):
        def instances(self) -> list[Instance]:
            never.wait()
            return super().instances()

    cloud = Long(clock, 3 * THREADS)
    Ending(clock, cloud).tick()
    assert until(lambda: len(cloud.destroys) == 3 * THREADS)


def test_a_slow_account_delays_no_other(clock: FakeClock, never: threading.Event) -> None:
    class Slow(Crowded):
        def account(self) -> str:
            never.wait()
            return super().account()

    slow, quick = Slow(clock, 3 * THREADS, "slow"), Crowded(clock, 1, "quick")
    ending = Ending(clock, slow, quick)
    ending.tick()
    assert until(lambda: len(quick.destroys) == 1 and quick.lists > 0)
    clock.advance(quick.traits.settle_window_s)
    assert until(lambda: ending.tick() or "quick-0" in ending.gone)
    assert slow.destroys == []


def test_a_list_that_fails_takes_no_acknowledgement_back(clock: FakeClock) -> None:
    class Unlisted(Crowded):
        def instances(self) -> list[Instance]:
            if self.lists < 1:
                self.lists += 1
                raise ProviderError("fake: a page is missing")
            return super().instances()

    cloud = Unlisted(clock, 1)
    ending = Ending(clock, cloud)
    for _ in range(3):
        ending.tick()
        assert ending.settled()
        clock.advance(cloud.traits.settle_window_s)
    assert ending.gone == {"fake-0"}
    assert cloud.destroys == ["0"]


def test_those_that_come_while_a_request_is_under_way_go_together_by_the_next(
    clock: FakeClock,
) -> None:
    cloud = AtOnce(clock, 9)
    cloud.silent = threading.Event()
    ending = Ending(clock, cloud)
    everything = ending.boxes
    ending.boxes = everything[:3]
    ending.tick()
    assert until(lambda: bool(cloud.requests))
    for size in (5, 7, 9):
        ending.boxes = everything[:size]
        ending.tick()
    assert len(cloud.requests) == 1
    cloud.silent.set()
    assert until(lambda: ending.tick() or len(cloud.requests) == 2)
    assert ending.settled()
    assert cloud.requests[1] == ["3", "4", "5", "6", "7", "8"]
    assert (cloud.boxes, cloud.destroys) == ({}, [])
