"""What a row that cannot be read keeps nobody from: the lists of its provider are taken in.

A real keeper over a real journal, with a clock and a cloud that a test holds in its hand.
"""

from dataclasses import replace
from decimal import Decimal

import pytest

from gpurun import glance
from gpurun.model import Ending, Instance, RunState
from gpurun.timers import entry_of
from tests.test_came_back import goes_on, keeper, listed, locked, refused, world
from tests.test_keeper import World
from tests.test_store import LABEL

__all__ = ["world"]  # a fixture


def ask(world: World, statement: str) -> None:
    with world.journal.database.write() as session:
        session.connection().exec_driver_sql(statement)


def with_a_damaged_old_timer(world: World) -> Instance:
    """Its box is at its second timer, which the black box has too; nobody can mend the first."""
    own = goes_on(world)
    world.extend(minutes=700)
    attempt, timer = world.journal.attempts.get(LABEL), world.journal.timers.of(LABEL)
    assert timer is not None
    world.blackbox.append(entry_of(attempt, timer, "seen"))
    ask(world, "UPDATE timers SET fires_at = 'x' WHERE seq = 1")
    world.tick(2, apart_s=31)
    return own


def test_a_box_with_a_damaged_old_timer_is_no_orphan(world: World) -> None:
    with_a_damaged_old_timer(world)
    world.tick(3, apart_s=31)
    assert glance.status(world.places.root, world.clock.now())["orphans"] == []


def test_its_end_in_a_console_is_noticed(world: World) -> None:
    with_a_damaged_old_timer(world)
    world.cloud.boxes.clear()
    world.tick(6, apart_s=31)
    assert world.journal.runs.get("run00001").state is RunState.FAILED


def test_its_price_is_followed(world: World) -> None:
    own = with_a_damaged_old_timer(world)
    world.cloud.boxes[own.id] = replace(own, usd_per_hour=Decimal(180))
    world.tick(10, apart_s=31)
    assert not world.alive
    assert world.journal.attempts.get(LABEL).usd_per_hour == 180


@pytest.mark.parametrize("when", ["later", "at the start, which finds it locked"])
def test_a_settled_row_keeps_nothing_else_from_being_ended(world: World, when: str) -> None:
    refused(world)
    own = goes_on(world)
    [other] = world.journal.attempts.of_run(world.rent_more(1, minutes=600))
    box = world.cloud.boxes[str(other.instance_id)]
    world.journal.endings.end_run(other.run_id, Ending.DONE, "", 0)
    world.tick(3, apart_s=61)
    ask(world, f"UPDATE instances SET usd_per_hour = 'x' WHERE label = '{other.label}'")
    lines = world.places.blackbox.read_text().splitlines(keepends=True)
    world.places.blackbox.write_text("".join(each for each in lines if other.label not in each))
    if when != "later":
        with locked(world):
            world.tick(2)
    world.cloud.boxes[box.id] = box
    listed(world, "7")
    world.tick(4, apart_s=31)
    assert sorted(world.cloud.boxes) == sorted([own.id, box.id])
    [orphan] = glance.status(world.places.root, world.clock.now())["orphans"]
    assert orphan["instance_id"] == box.id, "nobody ends it by itself, so it is shown"


def test_a_row_that_cannot_be_mended_yet_keeps_nothing_else_from_being_ended(world: World) -> None:
    """The journal is locked for minutes; the box of the damaged row is held by the black box."""
    refused(world)
    own = goes_on(world)
    attempt, timer = world.journal.attempts.get(LABEL), world.journal.timers.of(LABEL)
    assert timer is not None
    world.blackbox.append(entry_of(attempt, timer, "seen"))
    ask(world, f"UPDATE instances SET usd_per_hour = 'x' WHERE label = '{LABEL}'")
    with locked(world):
        listed(world, "7")
        world.tick(8, apart_s=10)
        assert list(world.cloud.boxes) == [own.id]


def test_a_live_row_that_no_black_box_holds_is_shown(world: World) -> None:
    own = goes_on(world)
    ask(world, f"UPDATE instances SET usd_per_hour = 'x' WHERE label = '{LABEL}'")
    world.places.blackbox.write_text("")
    keeper(world)
    world.tick(3, apart_s=31)
    [orphan] = glance.status(world.places.root, world.clock.now())["orphans"]
    assert orphan["instance_id"] == own.id
