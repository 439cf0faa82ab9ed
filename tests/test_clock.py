"""What the clock takes from the answers of providers, and when it is sure of itself."""

import time
from datetime import UTC, datetime
from math import floor

import pytest

from gpurun.clock import ANSWERED_WITHIN_S, ANSWERS_APART_S, SystemClock

HOURS_9_S = 9 * 3600.0


class Steered(SystemClock):
    """This machine's clock, whose boot clock a test moves on."""

    moved_s = 0.0

    def boot_s(self) -> float:
        return super().boot_s() + self.moved_s

    def hears(self, skew_s: float = 0.0, took_s: float = 0.0) -> None:
        """An answer whose provider is so far ahead of this machine; seconds are whole in it."""
        sent_at_s = time.time() + self.moved_s - took_s
        self.observe(datetime.fromtimestamp(floor(sent_at_s + skew_s), UTC), took_s)

    def ahead_s(self) -> float:
        """Of this machine's wall clock, and what was passed over."""
        return self.now().timestamp() - time.time() - self.moved_s


@pytest.fixture
def clock() -> Steered:
    return Steered()


def test_it_is_sure_of_itself_once_a_provider_says_the_same(clock: Steered) -> None:
    assert not clock.sure
    assert clock.dated() is None
    clock.hears()
    assert clock.sure
    assert abs(clock.ahead_s()) < 1, "nothing is corrected"


@pytest.mark.parametrize("skew_s", [HOURS_9_S, -HOURS_9_S, 90.0])
def test_a_clock_that_is_far_off_is_corrected_by_two_answers_10_s_apart(
    clock: Steered, skew_s: float
) -> None:
    clock.hears(skew_s)
    clock.hears(skew_s)
    assert not clock.sure
    assert abs(clock.ahead_s()) < 1
    dated = clock.dated()
    assert dated is not None
    assert abs((dated - clock.now()).total_seconds() - skew_s) < 2
    clock.moved_s += ANSWERS_APART_S
    clock.hears(skew_s)
    assert clock.sure
    assert abs(clock.ahead_s() - skew_s) < 2


def test_two_answers_that_differ_correct_nothing(clock: Steered) -> None:
    for skew_s in (HOURS_9_S, -HOURS_9_S, 2 * HOURS_9_S):
        clock.hears(skew_s)
        clock.moved_s += ANSWERS_APART_S
    assert not clock.sure
    assert abs(clock.ahead_s()) < 1


@pytest.mark.parametrize("skew_s", [30.0, -30.0])
def test_processes_that_begin_half_a_minute_off_agree_after_one_answer_each(skew_s: float) -> None:
    """A keeper that was there before beats by the provider's time, and a purchase reads that."""
    keeper, driver = Steered(), Steered()
    keeper.hears(skew_s)
    driver.hears(skew_s, took_s=1.0)
    assert keeper.sure and driver.sure
    assert abs(keeper.ahead_s() - driver.ahead_s()) < 2


@pytest.mark.parametrize("skew_s", [30.0, -30.0, HOURS_9_S])
def test_one_that_is_sure_is_moved_by_two_answers_only(clock: Steered, skew_s: float) -> None:
    clock.hears()
    clock.hears(skew_s)
    assert abs(clock.ahead_s()) < 1
    clock.moved_s += ANSWERS_APART_S
    clock.hears(skew_s)
    assert abs(clock.ahead_s() - skew_s) < 2


def test_a_slow_answer_is_no_other_time(clock: Steered) -> None:
    for _ in range(3):
        clock.hears(took_s=ANSWERED_WITHIN_S)
        clock.moved_s += ANSWERS_APART_S
    assert clock.sure
    assert abs(clock.ahead_s()) < 1


def test_one_that_took_longer_says_nothing(clock: Steered) -> None:
    """As of a machine that slept while it waited."""
    clock.hears(took_s=HOURS_9_S)
    assert not clock.sure
    assert clock.dated() is None


def test_one_taken_over_from_a_process_of_this_boot_is_not_sure_of_itself(clock: Steered) -> None:
    """That process may have had it from a wall clock that nobody has confirmed."""
    clock.set(0.0)
    assert not clock.sure
