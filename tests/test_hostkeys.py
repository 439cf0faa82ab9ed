"""Which pinned host keys the keeper removes, and when."""

import os
from pathlib import Path

import pytest

from gpurun.keeper.hostkeys import LOOK_EVERY_S, HostKeys
from gpurun.model import Ending
from gpurun.places import Places
from gpurun.store import Journal
from tests.fakecloud import FakeClock
from tests.stories import Story, journal_at

OLD_S = 25 * 3600
ALL = {"vast-i-1", "vast-77", "ssh-10.0.0.5-22", "vaster-1"}


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Pins of a box that lives, one that is gone, a host of the user's, and of another cloud."""
    places = Places(tmp_path).ensure()
    places.known_hosts.mkdir(exist_ok=True)
    for name in ALL:
        pin = places.known_hosts / name
        pin.write_text("a key\n")
        os.utime(pin, times=(FakeClock().now().timestamp() - OLD_S,) * 2)
    return places


def left(places: Places) -> set[str]:
    return {pin.name for pin in places.known_hosts.iterdir()}


def test_the_key_of_a_box_that_is_gone_is_removed_after_a_day(
    places: Places, tmp_path: Path
) -> None:
    clock = FakeClock()
    story = Story(journal_at(tmp_path, clock), clock, provider="vast").rented()
    young = places.known_hosts / "vast-78"
    young.write_text("a key\n")
    os.utime(young, times=(clock.now().timestamp(),) * 2)
    keys = HostKeys(places, clock, story.journal)
    keys.step()
    assert left(places) == (ALL | {"vast-78"}) - {"vast-77"}
    story.gone(Ending.DONE)
    keys.step()
    assert "vast-i-1" in left(places), "it looks now and then"
    clock.advance(LOOK_EVERY_S)
    keys.step()
    assert left(places) == {"vast-78", "ssh-10.0.0.5-22", "vaster-1"}
    story.journal.close()


def test_the_key_of_a_host_of_ones_own_stays(places: Places, tmp_path: Path) -> None:
    clock = FakeClock()
    journal = journal_at(tmp_path, clock)
    Story(journal, clock, provider="ssh:root@10.0.0.5:22").rented().gone()
    HostKeys(places, clock, journal).step()
    assert left(places) == ALL
    journal.close()


def test_a_journal_that_is_not_trusted_removes_nothing(places: Places, tmp_path: Path) -> None:
    clock = FakeClock()
    journal: Journal = journal_at(tmp_path, clock)
    story = Story(journal, clock, provider="vast").rented().gone()
    journal.owner.distrust("restored")
    HostKeys(places, clock, story.journal).step()
    assert left(places) == ALL
    journal.close()
