"""A clock that is set while a box lives is followed by nobody: its hours are not the box's."""

import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from gpurun.clock import SystemClock
from gpurun.glance import agreed_clock
from gpurun.places import Places
from tests.stories import Story, journal_at

NINE_HOURS = timedelta(hours=9)
SOON = timedelta(seconds=1)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    """Rented when the wall clock was nine hours ahead of what it says now."""
    clock = SystemClock()
    clock.set((clock.now() + NINE_HOURS).timestamp() - clock.boot_s())
    journal = journal_at(tmp_path, clock)
    yield Story(journal, clock).rented()
    journal.close()


def ahead(home: Path) -> timedelta:
    """By how much the agreed time is ahead of the wall clock."""
    return agreed_clock(home).now() - SystemClock().now()


def sql(home: Path, statement: str) -> None:
    with sqlite3.connect(Places(home).database) as database:
        database.execute(statement)
    database.close()


def test_whoever_starts_later_has_the_time_of_the_timer(tmp_path: Path, story: Story) -> None:
    assert abs(ahead(tmp_path) - NINE_HOURS) < SOON


def test_once_no_box_lives_the_wall_clock_counts_again(tmp_path: Path, story: Story) -> None:
    story.gone()
    assert abs(ahead(tmp_path)) < SOON


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE timers SET boot_id = 'before the restart'",
        "UPDATE timers SET fires_at = fires_at - 86400",
        "UPDATE timers SET ends_boot_s = 'soon'",
        "DELETE FROM timers",
        "DROP TABLE timers",
    ],
)
def test_a_timer_of_another_boot_or_a_damaged_one_sets_no_clock(
    tmp_path: Path, story: Story, damage: str
) -> None:
    sql(tmp_path, damage)
    assert abs(ahead(tmp_path)) < SOON


def test_without_a_journal_there_is_the_wall_clock(tmp_path: Path) -> None:
    assert abs(ahead(tmp_path / "none")) < SOON
    Places(tmp_path).database.write_text("no database" * 1000)
    assert abs(ahead(tmp_path)) < SOON
