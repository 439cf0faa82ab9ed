"""Several boxes of one label: each is ended, none is forgotten for another, and none called gone.

A real keeper over a real journal, with a clock and a cloud that a test holds in its hand.
"""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace

import pytest

from gpurun import glance
from gpurun.engine.seen import resolve
from gpurun.model import AttemptState, Ending, Instance, InstanceState, RunState
from gpurun.store.ledger import Caps
from gpurun.timers import entry_of
from tests.test_came_back import EARLIER, goes_on, keeper, listed, locked, outage, refused, world
from tests.test_keeper import World

__all__ = ["world"]  # a fixture


def test_what_cannot_be_ended_is_shown_and_ended_when_it_can(world: World) -> None:
    refused(world)
    own = goes_on(world)
    listed(world, "7")
    listed(world, "8", later_s=1)
    over: list[bool] = []
    asked = outage(world, lambda: bool(over))
    world.tick(60, apart_s=10)
    assert {"7", "8"} <= set(asked)
    shown = glance.status(world.places.root, world.clock.now())
    assert world.journal.attempts.get(EARLIER).state is AttemptState.DELETING
    assert [run["state"] for run in shown["runs"]] == ["still_billing"]
    over.append(True)
    world.tick(20, apart_s=10)
    assert list(world.cloud.boxes) == [own.id]


def test_a_twin_whose_delete_was_not_kept_is_ended_again(world: World) -> None:
    refused(world)
    own = goes_on(world)
    listed(world, "7")
    listed(world, "8", later_s=1)
    destroy, lied = world.cloud.destroy, []

    def lies(box_id: str) -> None:
        if box_id == "8" and not lied:
            lied.append(box_id)
        else:
            destroy(box_id)

    world.cloud.destroy = lies  # type: ignore[method-assign]
    world.tick(120)
    assert lied and list(world.cloud.boxes) == [own.id]


def test_lists_that_show_one_at_a_time_keep_neither(world: World) -> None:
    refused(world)
    own = goes_on(world)
    with locked(world):
        listed(world, "7")
        listed(world, "8", later_s=1)
        rows, looks = world.cloud.instances, []

        def flickers() -> list[Instance]:
            looks.append(1)
            hidden = "7" if len(looks) % 2 else "8"
            return [row for row in rows() if row.id != hidden]

        world.cloud.instances = flickers  # type: ignore[method-assign]
        began_s = world.clock.boot_s()
        asked = outage(world, lambda: world.clock.boot_s() - began_s > 120)
        world.tick(300)
        assert list(world.cloud.boxes) == [own.id]
    assert len(asked) < 30, "it does not wait longer each time"


def sent(world: World) -> None:
    """EARLIER was asked for; nobody knows what came of it."""
    attempts = world.journal.attempts
    made = replace(world.story.attempt(), label=EARLIER, account_id=world.cloud.account_id)
    timer = replace(world.story.timer(1, 5), label=EARLIER)
    attempts.intend(made, timer, [], Decimal(1), Caps(Decimal(10)), world.epoch)
    attempts.sending(EARLIER, world.epoch)
    world.blackbox.append(entry_of(attempts.get(EARLIER), timer, "sending"))
    world.clock.advance(2)
    made_now(world, "7")
    world.journal.endings.end_run("run00001", Ending.KILL, "", 0)


def made_now(world: World, box_id: str) -> None:
    world.cloud.boxes[box_id] = Instance(
        provider="fake",
        id=box_id,
        label=EARLIER,
        state=InstanceState.STARTING,
        usd_per_hour=Decimal("3.60"),
        created_at=world.clock.now(),
        gpu="H100",
        gpu_count=1,
    )


def answered(world: World) -> None:
    """The late answer names another box than the list had."""
    made_now(world, "8")
    world.journal.attempts.made(EARLIER, "8", "answer")


def test_the_box_of_a_list_is_not_forgotten_for_that_of_a_late_answer(world: World) -> None:
    sent(world)
    over: list[bool] = []
    outage(world, lambda: bool(over))
    world.tick(5)
    assert world.journal.attempts.get(EARLIER).instance_id == "7"
    answered(world)
    over.append(True)
    world.tick(60, apart_s=3)
    assert world.cloud.boxes == {}
    assert world.journal.runs.get("run00001").state is RunState.KILLED


def test_a_list_takes_no_place_of_an_answer(world: World) -> None:
    sent(world)
    rows, done = world.cloud.instances, []

    def late() -> list[Instance]:
        found = rows()
        if not done and any(row.label == EARLIER for row in found):
            done.append(1)
            answered(world)
        return found

    world.cloud.instances = late  # type: ignore[method-assign]
    world.tick(60, apart_s=3)
    assert done and world.cloud.boxes == {}
    assert world.journal.attempts.get(EARLIER).instance_id == "8"
    assert world.journal.runs.get("run00001").state is RunState.KILLED


@pytest.mark.parametrize("at_look", [1, 2])
def test_the_proof_of_one_is_not_that_of_the_other(world: World, at_look: int) -> None:
    """The answer is written while the last look at the first one is under way."""
    sent(world)
    instance, looks = world.cloud.instance, []

    def late(box_id: str) -> Instance | None:
        row = instance(box_id)
        if row is None and "7" not in world.cloud.boxes:
            looks.append(box_id)
            if len(looks) == at_look:
                answered(world)
        return row

    world.cloud.instance = late  # type: ignore[method-assign]
    gone_at = None
    for _ in range(120):
        world.tick()
        if world.journal.attempts.get(EARLIER).state is AttemptState.GONE and gone_at is None:
            gone_at = world.clock.now()
            assert world.cloud.boxes == {}, "it was called gone while it lived"
    assert gone_at is not None and len(looks) >= at_look


def test_what_a_list_has_told_of_one_is_not_believed_of_the_other(world: World) -> None:
    """That it was seen would make an absence its death, before its window is over."""
    sent(world)
    world.tick(8)
    answered(world)
    made_now(world, "8")
    shown_at = world.clock.now() + timedelta(seconds=60)
    rows, instance, destroy = world.cloud.instances, world.cloud.instance, world.cloud.destroy

    def hidden(box_id: str) -> bool:
        return box_id == "8" and world.clock.now() < shown_at

    def lagging() -> list[Instance]:
        return [row for row in rows() if not hidden(row.id)]

    def ends(box_id: str) -> None:
        if not hidden(box_id):
            destroy(box_id)

    world.cloud.instances = lagging  # type: ignore[method-assign]
    world.cloud.instance = lambda one: None if hidden(one) else instance(one)  # type: ignore[method-assign]
    world.cloud.destroy = ends  # type: ignore[method-assign]
    for _ in range(58):
        world.tick()
        assert world.journal.attempts.get(EARLIER).state is not AttemptState.GONE
    world.tick(60, apart_s=5)
    assert world.cloud.boxes == {}


def test_a_box_without_a_label_is_known_by_the_id_of_its_answer(world: World) -> None:
    """When the box that a list had told was made does not count for it."""
    sent(world)
    world.tick(8)
    answered(world)
    world.cloud.boxes["8"] = replace(world.cloud.boxes["8"], label="")
    world.tick(60, apart_s=10)
    assert world.cloud.boxes == {}


def test_a_driver_that_looks_for_its_box_ends_the_one_that_the_journal_has_not(
    world: World,
) -> None:
    """A round of the keeper has learnt one from a list that lacked the other."""
    sent(world)
    world.journal.attempts.unclear(EARLIER, "no answer")
    made_now(world, "8")
    later_at = world.clock.now() + timedelta(seconds=1)
    world.cloud.boxes["8"] = replace(world.cloud.boxes["8"], created_at=later_at)
    as_it_began = world.journal.attempts.get(EARLIER)
    rows = world.cloud.instances
    over: list[bool] = []
    outage(world, lambda: bool(over))
    world.cloud.instances = lambda: [row for row in rows() if row.id != "7"]  # type: ignore[method-assign]
    world.tick(4)
    assert world.journal.attempts.get(EARLIER).instance_id == "8"
    world.cloud.instances = rows  # type: ignore[method-assign]
    over.append(True)
    ctx = SimpleNamespace(
        journal=world.journal,
        clock=world.clock,
        cloud=world.cloud,
        run=world.journal.runs.get("run00001"),
    )
    found = resolve(ctx, as_it_began)  # type: ignore[arg-type]
    assert found is not None and found.instance_id == "8"
    world.tick(60, apart_s=3)
    assert world.cloud.boxes == {}


@pytest.mark.parametrize("dies", ["in an outage", "before it has asked for anything"])
def test_a_keeper_that_starts_anew_forgets_none(world: World, dies: str) -> None:
    refused(world)
    own = goes_on(world)
    world.tick()
    listed(world, "7")
    listed(world, "8", later_s=1)
    over: list[bool] = []
    outage(world, lambda: bool(over))
    if dies == "in an outage":
        world.tick(5, apart_s=31)
    else:
        while world.journal.attempts.get(EARLIER).state is AttemptState.REFUSED:
            world.tick()
    over.append(True)
    keeper(world)
    world.tick(20, apart_s=20)
    assert list(world.cloud.boxes) == [own.id]


@pytest.mark.parametrize("cell", ["ends_boot_s = 'garbage'", "seq = 'x'"])
def test_a_timer_that_cannot_be_replaced_keeps_none_alive(world: World, cell: str) -> None:
    """Nothing of a label that is settled is put right any more."""
    refused(world)
    own = goes_on(world)
    world.tick(2)
    with world.journal.database.write() as session:
        ask = session.connection().exec_driver_sql
        ask(f"UPDATE timers SET {cell} WHERE label = '{EARLIER}'")
    listed(world, "7")
    world.tick(20, apart_s=10)
    assert list(world.cloud.boxes) == [own.id]
