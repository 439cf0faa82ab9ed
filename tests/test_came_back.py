"""What is listed though it was refused, never seen, or gone: ended at once, and nothing else is.

A real keeper over a real journal, with a clock and a cloud that a test holds in its hand.  Its run
goes on with another box all the while.
"""

import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from gpurun import glance
from gpurun.blackbox import BlackBox
from gpurun.errors import ProviderError, ProviderUnreachable
from gpurun.keeper.daemon import Keeper
from gpurun.keeper.merge import merge_blackbox
from gpurun.locks import hold
from gpurun.model import AttemptState, Ending, Instance, InstanceState, RunState, Timer
from gpurun.outcome import conclude
from gpurun.settings import Settings
from gpurun.signals import TOLD
from gpurun.store import Journal
from gpurun.store.ledger import Caps
from gpurun.timers import entry_of
from tests.test_keeper import World
from tests.test_store import LABEL

EARLIER = LABEL[:-1] + "0"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    before = signal.signal(TOLD, lambda _number, _frame: None)
    made = World(tmp_path)
    with hold(made.places.run_lock("run00001")):  # a driver that does nothing
        yield made
    made.journal.close()
    signal.signal(TOLD, before)


def refused(world: World, told: str = "refused") -> None:
    """EARLIER was refused; `told`: what the black box has heard of it last."""
    attempts = world.journal.attempts
    made = replace(world.story.attempt(), label=EARLIER, account_id=world.cloud.account_id)
    timer = replace(world.story.timer(1, 5), label=EARLIER)
    attempts.intend(made, timer, [], Decimal(1), Caps(Decimal(10)), world.epoch)
    attempts.sending(EARLIER, world.epoch)
    attempts.refused(EARLIER, "no room")
    world.blackbox.append(entry_of(attempts.get(EARLIER), timer, told))


def goes_on(world: World) -> Instance:
    """The run's next box."""
    world.clock.advance(1)
    world.rent(minutes=600)
    [box] = world.cloud.boxes.values()
    return box


def listed(world: World, box_id: str, later_s: float = 0) -> None:
    [own, *_] = world.cloud.boxes.values()
    created_at = world.clock.now() + timedelta(seconds=later_s)
    world.cloud.boxes[box_id] = replace(own, id=box_id, label=EARLIER, created_at=created_at)


def outage(world: World, until: Callable[[], bool]) -> list[str]:
    """DELETE fails until then; returns the ids that are asked for."""
    destroy, asked = world.cloud.destroy, []

    def fails(box_id: str) -> None:
        asked.append(box_id)
        if not until():
            raise ProviderError("503")
        destroy(box_id)

    world.cloud.destroy = fails  # type: ignore[method-assign]
    return asked


def test_one_that_was_refused_is_ended_within_a_minute(world: World) -> None:
    """Its run's driver, which works on the next box, would end it no sooner than at its timer."""
    refused(world)
    own = goes_on(world)
    listed(world, "7")
    world.tick(60)
    assert list(world.cloud.boxes) == [own.id]
    assert world.journal.attempts.get(EARLIER).state is AttemptState.GONE
    assert world.journal.runs.get("run00001").ending is None


@pytest.mark.parametrize("state", ["ghost", "refused"])
def test_all_that_one_request_has_made_are_ended(world: World, state: str) -> None:
    refused(world)
    if state == "ghost":
        with world.journal.database.write() as session:
            session.connection().exec_driver_sql("UPDATE instances SET state = 'ghost'")
    own = goes_on(world)
    listed(world, "7")
    listed(world, "8", later_s=1)
    world.tick(60)
    assert list(world.cloud.boxes) == [own.id]
    assert world.journal.runs.get("run00001").ending is None


def test_one_that_a_restored_journal_never_asked_for_is_ended(world: World) -> None:
    """F41: to its intent, by which a takeover has given the run up; nothing else lives there."""
    own = goes_on(world)
    with world.journal.database.write() as session:
        ask = session.connection().exec_driver_sql
        ask("UPDATE instances SET state='intent', instance_id=NULL, sent_at=NULL")
    world.places.blackbox.write_text("")
    keeper(world)
    world.journal.attempts.refused(LABEL, "its driver died before the request left")
    world.journal.endings.end_run("run00001", Ending.FAILED, "", 0)
    conclude(world.journal, "run00001")
    world.tick(2, apart_s=31)
    assert own.id not in world.cloud.boxes


def test_one_that_a_restored_journal_has_never_heard_of_is_shown(world: World) -> None:
    """F41: to the beginning of its run; nothing else lives there."""
    own = goes_on(world)
    for table in ("instances", "timers", "guards"):
        with world.journal.database.write() as session:
            session.connection().exec_driver_sql(f"DELETE FROM {table}")
    named = LABEL.replace("owner1", world.journal.owner.ensure()[0])
    world.cloud.boxes[own.id] = replace(own, label=named)
    world.places.blackbox.write_text("")
    keeper(world)
    world.journal.endings.end_run("run00001", Ending.FAILED, "", 0)
    conclude(world.journal, "run00001")
    world.tick(2, apart_s=31)
    [orphan] = glance.status(world.places.root, world.clock.now())["orphans"]
    assert (orphan["instance_id"], orphan["whose"]) == (own.id, "ours")
    assert list(world.cloud.boxes) == [own.id]


def test_one_that_its_provider_lists_as_ended_has_not_come_back(world: World) -> None:
    own = goes_on(world)
    world.journal.endings.end_run("run00001", Ending.DONE, "", 0)
    world.tick(5, apart_s=61)
    asked = len(world.cloud.destroys)
    world.cloud.boxes[own.id] = replace(own, state=InstanceState.GONE)
    world.cloud.boot_s = 1e9  # it stays as it is
    world.tick(3, apart_s=61)
    assert world.journal.attempts.get(LABEL).state is AttemptState.GONE
    assert len(world.cloud.destroys) == asked


@pytest.mark.parametrize("was", ["refused", "gone"])
def test_a_journal_that_is_locked_keeps_it_no_longer(world: World, was: str) -> None:
    if was == "refused":
        refused(world)
        own = goes_on(world)
        listed(world, "7")
    else:
        own = goes_on(world)
        world.journal.endings.end_run("run00001", Ending.DONE, "", 0)
        world.tick(5, apart_s=61)
        assert world.journal.attempts.get(LABEL).state is AttemptState.GONE
        world.cloud.boxes[own.id] = own
    with locked(world):
        world.tick(9, apart_s=10)
        assert list(world.cloud.boxes) == ([own.id] if was == "refused" else [])
    world.tick(10, apart_s=10)
    if was == "refused":
        assert world.journal.attempts.get(EARLIER).state is AttemptState.REFUSED


@contextmanager
def locked(world: World) -> Iterator[None]:
    """Another program holds the journal from before the keeper starts anew."""
    other = sqlite3.connect(world.places.database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    world.journal.database.close()
    world.journal = Journal(world.places.database, world.clock, busy_timeout_s=0.01)
    keeper(world)
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def keeper(world: World) -> None:
    """Another one takes over."""
    blackbox = BlackBox(world.places.blackbox, *(world.blackbox.header() or ("", "")))
    settings = Settings.model_construct()
    given = (world.places, settings, world.clock, world.journal, blackbox)
    world.keeper = Keeper(*given, lambda _name: world.cloud)


def test_the_black_box_knows_it_should_the_journal_be_lost(world: World) -> None:
    refused(world)
    own = goes_on(world)
    listed(world, "7")
    over: list[bool] = []
    outage(world, lambda: bool(over))
    world.tick(5)
    world.journal.close()
    for path in world.places.database.parent.glob("gpurun.db*"):
        path.write_bytes(b"\xff" * 4096)
    over.append(True)
    world.journal = Journal(world.places.database, world.clock)
    keeper(world)
    world.tick(10, apart_s=10)
    assert list(world.cloud.boxes) == [own.id]


def test_a_damaged_row_of_another_run_keeps_it_no_longer(world: World) -> None:
    refused(world)
    own = goes_on(world)
    with ExitStack() as stack:
        other, third = (world.rent_more(number, minutes=600) for number in (1, 2))
        for run_id in (other, third):
            stack.enter_context(hold(world.places.run_lock(run_id)))
        with world.journal.database.write() as session:
            session.connection().exec_driver_sql(
                f"UPDATE instances SET usd_per_hour = 'garbage' WHERE run_id = '{other}'"
            )
        lines = world.places.blackbox.read_text().splitlines(keepends=True)
        world.places.blackbox.write_text("".join(line for line in lines if other not in line))
        world.tick(2)
        world.cloud.boxes.pop(world.journal.attempts.of_run(third)[0].instance_id or "")
        listed(world, "7")
        world.tick(60, apart_s=4)
    assert "7" not in world.cloud.boxes
    assert own.id in world.cloud.boxes and len(world.cloud.boxes) == 2
    assert world.journal.runs.get(third).state is RunState.FAILED, "it has ended outside gpurun"
    [account] = world.journal.keepers.accounts()
    assert account.auth_ok


def test_a_twin_that_cannot_be_ended_keeps_nothing_else_from_it(world: World) -> None:
    """Nor from being listed: it is the next list's box that has come back."""
    refused(world)
    own = goes_on(world)
    listed(world, "7")
    listed(world, "8", later_s=1)
    destroy, failed = world.cloud.destroy, []

    def once(box_id: str) -> None:
        if box_id == "8" and not failed:
            failed.append(box_id)
            raise ProviderError("503")
        destroy(box_id)

    world.cloud.destroy = once  # type: ignore[method-assign]
    for _ in range(90):
        if not failed:
            world.tick()
    assert failed
    [account] = world.journal.keepers.accounts()
    assert account.auth_ok
    world.tick(90)
    assert list(world.cloud.boxes) == [own.id]


def test_a_damaged_row_of_a_gone_box_that_is_listed_is_shown(world: World) -> None:
    """It cannot be read, so nobody ends it by itself; a row that is right again is ended."""
    own = goes_on(world)
    world.journal.endings.end_run("run00001", Ending.DONE, "", 0)
    world.tick(5, apart_s=61)
    with world.journal.database.write() as session:
        ask = session.connection().exec_driver_sql
        ask("UPDATE instances SET usd_per_hour = 'x'")
    world.places.blackbox.write_text("")
    keeper(world)
    world.cloud.boxes[own.id] = own
    world.tick(4, apart_s=31)
    [orphan] = glance.status(world.places.root, world.clock.now())["orphans"]
    assert (orphan["instance_id"], list(world.cloud.boxes)) == (own.id, [own.id])
    [account] = world.journal.keepers.accounts()
    assert account.auth_ok and account.listed_at
    assert world.clock.now() - account.listed_at < timedelta(seconds=65)
    with world.journal.database.write() as session:
        session.connection().exec_driver_sql("UPDATE instances SET usd_per_hour = '3.60'")
    world.tick(5, apart_s=31)
    assert world.cloud.boxes == {}


def test_a_refusal_that_the_black_box_has_not_heard_of_ends_no_later_box(world: World) -> None:
    """Else the next keeper takes it for one that may live, and its timer for the run's."""
    refused(world, told="sending")
    own = goes_on(world)
    world.tick(3, apart_s=600)
    merge_blackbox(world.journal, world.blackbox)
    assert world.journal.attempts.get(EARLIER).state is AttemptState.UNCLEAR
    world.tick(30, apart_s=30)
    assert list(world.cloud.boxes) == [own.id]
    assert world.journal.runs.get("run00001").ending is None
    assert world.journal.attempts.get(EARLIER).ending is Ending.DEADLINE


def test_what_its_driver_has_proven_gone_is_no_longer_being_ended(world: World) -> None:
    """What was gathered before counts neither against the run nor for a death to come."""
    own = goes_on(world)
    world.tick(1, apart_s=121)
    world.journal.endings.end_run("run00001", Ending.DONE, "", 300)
    world.journal.endings.hurry("run00001")
    world.tick(1)
    world.journal.attempts.gone(LABEL, "{}")
    world.tick(20, apart_s=61)
    assert world.journal.runs.get("run00001").state is not RunState.STILL_BILLING
    world.cloud.boxes[own.id] = own
    rows, asked = world.cloud.instances, []

    def lags() -> list[Instance]:
        asked.append(1)
        return rows() if len(asked) == 1 else []

    world.cloud.instances = lags  # type: ignore[method-assign]
    world.cloud.instance = lambda _id: None  # type: ignore[method-assign]
    before = len(world.cloud.destroys)
    while len(asked) < 2:
        world.tick()
    assert not world.cloud.boxes or world.journal.attempts.get(LABEL).state is not AttemptState.GONE
    assert len(world.cloud.destroys) > before


@pytest.mark.parametrize("slow", [False, True])
def test_an_id_that_was_given_to_another_box_is_not_asked_for(world: World, slow: bool) -> None:
    """Lists say so, where the box itself cannot be asked about."""
    own = goes_on(world)
    foreign = replace(own, label="theirs", created_at=own.created_at - timedelta(seconds=90))
    world.cloud.boxes[own.id] = foreign

    def away(_id: str) -> Instance:
        if slow:
            threading.Event().wait(1.3)
            return foreign
        raise ProviderUnreachable("504")

    world.cloud.instance = away  # type: ignore[method-assign]
    world.journal.endings.end_run("run00001", Ending.KILL, "", 0)
    world.tick(3, apart_s=20)
    assert world.cloud.destroys == []


def test_one_that_was_extended_since_it_was_looked_at_lives(world: World) -> None:
    world.rent(minutes=1)
    world.tick(1)
    world.clock.advance(300)  # all slept past its end
    endings = world.journal.endings
    fire = endings.fire

    def extended_first(timer: Timer, *rest: object) -> list[Timer] | None:
        if timer.seq == 1:
            world.extend(minutes=60)
        return fire(timer, *rest)  # type: ignore[arg-type]

    endings.fire = extended_first  # type: ignore[method-assign]
    world.tick(4)
    assert world.alive and world.journal.runs.get("run00001").ending is None


def given_to_another(world: World, box_id: str) -> None:
    [own, *_] = world.cloud.boxes.values()
    world.cloud.boxes[box_id] = replace(
        own, id=box_id, label="a-customers-training", created_at=world.clock.now()
    )


def test_an_id_of_a_list_that_is_given_again_is_not_touched(world: World) -> None:
    """F46: its own was ended, and is not proven gone yet."""
    refused(world)
    goes_on(world)
    listed(world, "7")
    for _ in range(90):
        if "7" in world.cloud.boxes:
            world.tick()
    world.tick(2)
    given_to_another(world, "7")
    world.tick(90)
    assert "7" in world.cloud.boxes
    assert world.journal.attempts.get(EARLIER).state is AttemptState.GONE


def test_an_id_that_is_given_again_during_an_outage_is_not_touched(world: World) -> None:
    """Its own was ended in the console meanwhile."""
    refused(world)
    goes_on(world)
    listed(world, "7")
    over: list[bool] = []
    outage(world, lambda: bool(over))
    world.tick(30, apart_s=5)
    world.cloud.boxes.pop("7")
    given_to_another(world, "7")
    world.tick(30, apart_s=5)
    over.append(True)
    world.tick(30, apart_s=20)
    assert "7" in world.cloud.boxes
    assert world.journal.attempts.get(EARLIER).state is AttemptState.GONE


def test_one_that_goes_by_itself_is_proven_gone(world: World) -> None:
    """What a provider refused may be listed for a moment all the same."""
    refused(world)
    goes_on(world)
    listed(world, "7")
    rows, shown = world.cloud.instances, []

    def once() -> list[Instance]:
        found = rows()
        if any(row.id == "7" for row in found):
            shown.append(1)
            world.cloud.boxes.pop("7")
        return found

    world.cloud.instances = once  # type: ignore[method-assign]
    world.tick(60, apart_s=5)
    assert len(shown) == 1
    assert world.journal.attempts.get(EARLIER).state is AttemptState.GONE
