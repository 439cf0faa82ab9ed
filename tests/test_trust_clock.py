"""A purchase needs a clock that its provider agrees with; an end needs none (protocol 6)."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpurun.clock import SystemClock
from gpurun.errors import UsageError
from gpurun.trust import require_true_wall
from tests.cloudruns.scene import FOUR_H100, Scene, scene
from tests.clouds.stub import StubBoxes
from tests.fakecloud import FakeClock

HOURS_9_S = 9 * 3600


@pytest.fixture
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    with scene(request.param, tmp_path / "home", StubBoxes()) as made:
        yield made


def heard(skew_s: float) -> SystemClock:
    """A clock that has had one answer from a provider whose time is so far ahead of ours."""
    clock = SystemClock()
    clock.observe(datetime.fromtimestamp(time.time() + skew_s, UTC))
    return clock


@pytest.mark.parametrize("skew_s", [HOURS_9_S, -HOURS_9_S])
@pytest.mark.parametrize("shop", ["vast", "prime"], indirect=True)
def test_nothing_is_bought_while_the_wall_clock_is_hours_off(shop: Scene, skew_s: int) -> None:
    shop.cloud.fault("date_skew_s", seconds=skew_s)
    recipe = shop.home.recipe()
    words = ("--provider", shop.provider, *FOUR_H100, "--accept-one-guard")
    done = shop.home.run("up", recipe, "--yes", *words)
    assert done.returncode == 2, done.stderr + shop.home.logs()
    assert f"{'behind' if skew_s > 0 else 'ahead of'} the time of {shop.provider}" in done.stderr
    assert "nothing was rented" in done.stderr and "Set the clock" in done.stderr
    assert (shop.cloud.world.asked["create"], shop.made()) == (0, [])


@pytest.mark.parametrize(("shop", "skew_s"), [("vast", 30), ("prime", -30)], indirect=["shop"])
def test_half_a_minute_off_buys(shop: Scene, skew_s: int) -> None:
    shop.cloud.fault("date_skew_s", seconds=skew_s)
    shop.up()
    shop.until_made(1)


@pytest.mark.parametrize("skew_s", [120, -120, 86_400])
def test_it_is_said_by_how_much_it_is_off(skew_s: int) -> None:
    with pytest.raises(UsageError) as refused:
        require_true_wall(heard(skew_s), "vast")
    by = str(timedelta(seconds=abs(skew_s)))
    assert f"{by} {'behind' if skew_s > 0 else 'ahead of'} the time of vast" in str(refused.value)


@pytest.mark.parametrize("skew_s", [0, 50, -50])
def test_less_than_a_minute_is_no_reason(skew_s: int) -> None:
    require_true_wall(heard(skew_s), "vast")


def test_where_no_answer_bears_a_date_there_is_nothing_to_compare() -> None:
    require_true_wall(SystemClock(), "local")
    require_true_wall(FakeClock(), "ssh:me@host:22")
