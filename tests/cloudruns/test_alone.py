"""This machine is gone for good: what still ends a box at Vast, and what that costs at most."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from tests.cloudruns.scene import LONG_AFTER_S, Scene, scene
from tests.clouds.boxes import Spec
from tests.clouds.meter import HOUR_S
from tests.clouds.real import RealBox, RealBoxes
from tests.clouds.vast.schedule import LATE_S

UPTIME = "run/uptime"
MOST_AFTER_E = timedelta(minutes=66)
MOST_AFTER_E_USD = Decimal("8.32")


class Timeless(RealBoxes):
    """Boxes whose uptime stands still, at what a file of theirs says."""

    def make(self, spec: Spec, api_port: int) -> RealBox:
        made = super().make(spec, api_port)
        made.box.sh(f"cat /proc/uptime > /{UPTIME}; mount --bind /{UPTIME} /proc/uptime")
        return made


@pytest.fixture
def vast(tmp_path: Path) -> Iterator[Scene]:
    with scene("vast", tmp_path / "home", Timeless()) as made:
        yield made


def left_alone(vast: Scene) -> datetime:
    """A training under all its guards, whose controller dies; the deadline that it had."""
    run = vast.in_training()
    vast.until(lambda: all(guard["state"] == "armed" for guard in vast.look(run)["guards"]))
    assert {guard["name"] for guard in vast.last["guards"]} == {"keeper", "fuse", "provider"}
    vast.home.close()
    return datetime.fromisoformat(vast.last["timer"]["ends_at"])


def test_the_fuse_ends_it_with_the_key_of_the_box(vast: Scene) -> None:
    left_alone(vast)
    uptime = vast.box.root / UPTIME
    uptime.write_text(f"{float(uptime.read_text().split()[0]) + HOUR_S:.2f} 0.00\n")
    vast.until(lambda: vast.alive() == 0)
    billed_usd = vast.billed_usd()
    vast.cloud.advance(LONG_AFTER_S)  # the schedule fires, at an id that is gone
    assert vast.billed_usd() == billed_usd


def test_vasts_own_schedule_ends_it_when_the_fuse_is_dead_too(vast: Scene) -> None:
    ends_at = left_alone(vast)
    vast.box.freeze()
    world = vast.cloud.world
    vast.cloud.advance((ends_at - world.now).total_seconds())
    billed_usd = vast.billed_usd()
    vast.cloud.advance((MOST_AFTER_E - timedelta(seconds=LATE_S)).total_seconds())
    assert vast.alive() == 0
    overrun_usd = vast.billed_usd() - billed_usd
    assert Decimal(0) < overrun_usd <= MOST_AFTER_E_USD
    vast.cloud.advance(LONG_AFTER_S)
    assert vast.billed_usd() == billed_usd + overrun_usd
