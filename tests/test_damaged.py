"""What one box says of itself, and one damaged cell of the journal, cost that box alone (F39, F52).

A real keeper, `kill` and `status` over a journal of which one row is bad, or was filled by a box
that lies; each of the other boxes is ended in its time, and the bad one too.  What timers.log has
a second copy of is put right; what it has not is named, and nothing is bought.
"""

import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpurun import engine, glance, settings, show, trust
from gpurun.clock import SystemClock
from gpurun.engine.killing import kill
from gpurun.keeper.mending import LOOK_EVERY_S, Mending
from gpurun.locks import hold
from gpurun.model import Attempt, AttemptState, Ending, RunState, Timer
from gpurun.places import Places
from gpurun.signals import TOLD
from gpurun.store import StoreError
from gpurun.store.cells import damaged
from tests.accounts import Accounts, accounts_of
from tests.fakecloud import FakeClock
from tests.homes import BUILD, Home
from tests.stories import Story, journal_at
from tests.test_keeper import World
from tests.test_store import LABEL

LARGEST = 2**63 - 1
YEAR_9999 = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
CELLS = [
    "instances SET usd_per_hour = '2,0'",
    "instances SET state = 'garbage'",
    "timers SET ends_at = 1e300",
    "timers SET ends_at = 1e17",
    f"timers SET ends_at = {YEAR_9999.timestamp()}",
    "timers SET fires_boot_s = 'garbage'",
    "timers SET seq = 'garbage'",
    f"timers SET seq = {LARGEST}",
    f"guards SET state = 'armed', seq_read = 0, ends_at_read = {YEAR_9999.timestamp()}",
    "guards SET state = 'armed', seq_read = 0, ends_at_read = 1e300",
]

MENDED = [
    *CELLS[:4],
    "instances SET usd_per_hour = 'NaN'",
    "instances SET ceiling_at = 'soon'",
    "instances SET sent_at = 1e300",
    "instances SET ending = 'garbage'",
    "instances SET created_at = 'x'",
    "instances SET first_seen_at = 'x'",
    "timers SET fires_at = 'noon'",
    "timers SET fires_boot_s = 'garbage'",
    "timers SET fires_boot_s = 9e999, ends_boot_s = 9e999",
    "timers SET state = 'garbage'",
    "guards SET state = 'garbage'",
    "guards SET seq_read = 'x'",
    "guards SET state = 'armed', ends_at_read = 1e300",
]


def damage(places: Places, cell: str, label: str = LABEL) -> None:
    with sqlite3.connect(places.database) as other:
        other.execute(f"UPDATE {cell} WHERE label = ?", [label])
    other.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Two runs whose drivers do nothing: LABEL ends after 11 minutes, the other after 6."""
    before = signal.signal(TOLD, lambda _number, _frame: None)
    made = World(tmp_path)
    made.rent(minutes=10)
    with ExitStack() as stack:
        for run_id in ("run00001", made.rent_more(1, minutes=5)):
            stack.enter_context(hold(made.places.run_lock(run_id)))
        yield made
    made.journal.close()
    signal.signal(TOLD, before)


@pytest.mark.parametrize("cell", CELLS)
def test_a_damaged_cell_keeps_no_box_from_its_end(world: World, cell: str) -> None:
    world.tick(2)
    damage(world.places, cell)
    world.tick(24, apart_s=10)
    assert len(world.cloud.boxes) == 2, "nothing is ended before its time"
    world.tick(7, apart_s=10)
    assert world.journal.runs.get("run10001").ending is Ending.DEADLINE, "by the journal, at T"
    world.tick(12, apart_s=10)
    assert [box.label for box in world.cloud.boxes.values()] == [LABEL]
    assert world.journal.runs.get("run10001").state is RunState.DEADLINE
    world.tick(30, apart_s=10)
    assert world.cloud.boxes == {}


def known(world: World) -> tuple[Attempt, Timer | None]:
    """Of LABEL, but for what no other cell and no other file tells."""
    attempt, timer = world.journal.attempts.get(LABEL), world.journal.timers.of(LABEL)
    return replace(attempt, created_at=None), timer


@pytest.mark.parametrize("cell", MENDED)
def test_a_damaged_cell_is_put_right_and_its_run_goes_on(
    world: World, cell: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.tick(2)
    before = known(world)
    damage(world.places, cell)
    assert damaged(world.journal.database)
    world.tick(int(LOOK_EVERY_S) + 1)
    assert known(world) == before
    assert damaged(world.journal.database) == []
    assert f"put right: {LABEL}: {cell.split()[0]}." in caplog.text
    events = glance.events(world.places.root, "run00001")
    notes = [each["detail"] for each in events if each["what"] == "note"]
    assert notes and all(f"put right: {LABEL}" in note for note in notes)
    assert world.journal.owner.trouble() == "", "no sign of a restored database"
    world.tick(70, apart_s=10)
    run = world.journal.runs.get("run00001")
    assert (run.ending, run.state, world.cloud.boxes) == (Ending.DEADLINE, RunState.DEADLINE, {})


@pytest.mark.parametrize("cell", [CELLS[0], "timers SET ends_at = 'x'"])
def test_what_is_known_nowhere_else_is_named_and_keeps_from_buying(
    world: World, cell: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The others end in their time."""
    world.tick(2)
    damage(world.places, cell)
    world.places.blackbox.unlink()
    world.tick(9, apart_s=30)
    assert world.journal.runs.get("run10001").ending is None
    world.tick(15, apart_s=10)
    assert [box.label for box in world.cloud.boxes.values()] == [LABEL]
    assert f"the journal is damaged: {LABEL}" in caplog.text
    with pytest.raises(StoreError, match=rf"nothing was rented \({LABEL}"):
        trust.may_buy(world.places, world.clock)


def test_many_damaged_rows_keep_no_box_waiting(world: World) -> None:
    """Of those that cannot be put right either; each tick is to be over within a second."""
    for number in range(2, 102):
        world.rent_more(number, minutes=60)
    with sqlite3.connect(world.places.database) as other:
        other.execute("UPDATE instances SET usd_per_hour = '2,0', ceiling_at = 'x'")
        other.execute("UPDATE timers SET state = 'garbage' WHERE label != ?", [LABEL])
    other.close()
    world.places.blackbox.unlink()
    mending = Mending(world.journal, world.blackbox, world.clock)
    began_s = time.process_time()
    mending.step()
    assert len(damaged(world.journal.database)) == 102
    assert time.process_time() - began_s < 1


@pytest.mark.slow
def test_a_driver_that_meets_a_damaged_row_ends_no_box_for_it(home: Home) -> None:
    """The keeper puts it right, and another driver goes on."""
    run = home.up(home.recipe(build=f"until [ -e go ]; do sleep 0.1; done; {BUILD}"))
    home.until_phase(run, "data")
    [attempt] = home.journal().attempts.of_run(run)
    damage(home.places, "guards SET state = 'armed', ends_at_read = 1e300", attempt.label)
    assert home.run("ssh", run, "--", "touch", "go").returncode == 0
    home.until_finished(run)
    assert home.document(run)["state"] == "done", home.logs()
    steps = (home.places.run_dir(run) / "steps.log").read_text()
    assert "1e+300 is no instant" in steps


@pytest.mark.parametrize("seq", [2, LARGEST])
def test_a_box_that_names_a_seq_of_its_own_is_ended_in_its_time(world: World, seq: int) -> None:
    timer = world.journal.timers.of(LABEL)
    assert timer is not None
    world.journal.timers.guard(LABEL, "fuse", "armed", seq=seq, ends_at=timer.ends_at)
    state = world.journal.timers.guard_state(LABEL, "fuse")
    world.tick(12, apart_s=1)
    followed = world.journal.timers.last_seq(LABEL)
    assert (state, followed) == (("armed", 2) if seq == 2 else ("unknown", 1))
    world.tick(60, apart_s=12)
    assert world.cloud.boxes == {}
    assert world.journal.attempts.get(LABEL).state is AttemptState.GONE


def test_a_seq_that_an_older_keeper_has_taken_down_is_not_followed(world: World) -> None:
    timer = world.journal.timers.of(LABEL)
    assert timer is not None
    end_s = timer.ends_at.timestamp()
    damage(
        world.places, f"guards SET state = 'armed', seq_read = {LARGEST}, ends_at_read = {end_s}"
    )
    world.tick(12, apart_s=1)
    assert world.journal.timers.last_seq(LABEL) == 1
    world.tick(60, apart_s=12)
    assert world.cloud.boxes == {}


def test_a_guard_that_cannot_be_followed_keeps_no_other_waiting(world: World) -> None:
    label = LABEL.replace("run00001", "run10001")
    other = world.journal.timers.of(label)
    assert other is not None
    world.journal.timers.guard(LABEL, "fuse", "armed", seq=2, ends_at=other.ends_at)
    world.journal.timers.guard(label, "fuse", "armed", seq=2, ends_at=other.ends_at)
    damage(world.places, "instances SET usd_per_hour = '2,0'")
    world.tick(12, apart_s=1)
    assert world.journal.timers.last_seq(label) == 2


@pytest.fixture
def accounts(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Accounts]:
    with accounts_of(home, monkeypatch) as found:
        yield found


@pytest.mark.timeout(600)
def test_one_bad_row_keeps_no_run_from_being_killed(accounts: Accounts) -> None:
    cells = [CELLS[0], f"timers SET seq = {LARGEST}", None]
    runs = {f"run0000{number}": cell for number, cell in enumerate(cells)}
    for run_id, cell in runs.items():
        story, _ = accounts.run_of(accounts.vast, run_id=run_id)
        accounts.trace(story)
        if cell:
            damage(accounts.home.places, cell, story.label)
    found = kill(list(runs), collect=False, settings=settings.load())
    assert accounts.alive(accounts.vast) == set()
    assert {run_id: said.proven for run_id, said in found.items()} == {
        run_id: cell is not None for run_id, cell in runs.items()
    }
    assert story.journal.runs.get(story.run_id).ending is Ending.KILL, "the good one"


def test_what_only_the_journal_knows_is_killed_though_its_timer_cannot_be_read(
    accounts: Accounts,
) -> None:
    accounts.run_of(accounts.vast)
    accounts.home.places.blackbox.unlink(missing_ok=True)
    damage(accounts.home.places, "timers SET ends_at = 1e300", LABEL)
    [found] = kill(["run00001"], collect=False, settings=settings.load()).values()
    assert found.proven
    assert accounts.alive(accounts.vast) == set()


@pytest.mark.parametrize("cell", sorted({*CELLS, *MENDED}))
def test_status_shows_a_damaged_row(tmp_path: Path, cell: str) -> None:
    clock = FakeClock()
    story = Story(journal_at(tmp_path, clock), clock).rented().watched()
    damage(Places(tmp_path), cell)
    document = glance.status(tmp_path, clock.now())
    [run], said = document["runs"], show.status_text(document, show.Look())
    assert (run["id"], run["state"]) == ("run00001", RunState.ACTIVE)
    found = ", ".join(str(each).partition(": ")[2] for each in damaged(story.journal.database))
    assert sorted((run["damage"] or "").split(", ")) == sorted(found.split(", "))
    assert (f"damaged in the journal: {run['damage']}" in said) is bool(found)


def test_doctor_and_orphans_say_what_is_damaged_and_up_puts_it_right(accounts: Accounts) -> None:
    story, _ = accounts.run_of(accounts.vast)
    accounts.trace(story)
    rate = story.journal.attempts.get(story.label).usd_per_hour
    damage(accounts.home.places, CELLS[0], story.label)
    found = {each.what: each for each in engine.doctor(settings.load())}["journal"]
    assert not found.ok
    assert found.says.startswith(
        f"{story.label}: instances.usd_per_hour is '2,0'. A running keeper"
    )
    survey = engine.orphans(settings.load(), SystemClock())
    assert survey.orphans == (), "by timers.log it is a run's"
    assert ["is damaged: '2,0'" in each.why for each in survey.troubles] == [True]
    trust.may_buy(accounts.home.places, SystemClock()).close()
    assert story.journal.attempts.get(story.label).usd_per_hour == rate
