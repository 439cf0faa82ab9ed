"""Beside whatever its driver does, keeper and fuse of a box are looked after."""

import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from gpurun.clock import SystemClock
from gpurun.engine.context import open_context
from gpurun.engine.guarding import last_words
from gpurun.engine.tending import FuseTending
from gpurun.fuse import FuseState
from gpurun.guards import fuse_of
from gpurun.locks import holder
from gpurun.model import Ending, Need, Order, Run
from gpurun.places import Places
from gpurun.reach import shell_of
from gpurun.recipe import load
from gpurun.settings import Settings
from gpurun.store.timers import GuardWord
from tests.boxes import box
from tests.homes import BUILD, WAITS, Home
from tests.hosts import Hosts, left_on, run_root
from tests.stories import Story, journal_at


class Tiny(Story):
    recipe_json = ""

    def run(self) -> Run:
        return replace(super().run(), recipe_json=self.recipe_json)


class Guarded:
    """A box on this machine under a setup timer; its fuse is at hand, and armed by `contact`."""

    def __init__(self, home: Home) -> None:
        self.places, clock = home.places, SystemClock()
        self.journal = journal_at(self.places.root, clock)
        self.story = Tiny(self.journal, clock)
        recipe = load(str(home.recipe()), provider="local")
        self.story.recipe_json = json.dumps(recipe.to_dict())
        self.story.rented()
        ctx = open_context(self.story.run_id, self.places, Settings(), clock)
        [offer] = ctx.cloud.offers(Need(None, 0, 1))
        now, label = clock.now(), self.story.label
        self.destroy = lambda: ctx.cloud.destroy(label)
        made = ctx.cloud.create(Order(offer, Need(None, 0, 1), label, now, now, Decimal(10)))
        self.journal.attempts.made(label, made.instance_id, "answer")
        attempt = self.journal.attempts.get(label)
        shell = shell_of(ctx.cloud, label, self.places)
        fuse = fuse_of(ctx.cloud, attempt, self.journal, clock, shell)
        assert fuse is not None
        self.fuse = fuse
        self.said: list[str] = []
        self.tend = FuseTending(ctx, attempt, self.said.append)

    def contact(self) -> None:
        timer = self.journal.timers.of(self.story.label)
        assert timer is not None
        state = self.fuse.arm(timer, last_words())
        assert state is not None and state.holds(1)

    @property
    def home(self) -> Path:
        return self.places.root / "fuses" / self.story.label

    def pid(self) -> int:
        return int((self.home / "fuse.pid").read_text().split()[0])

    def kill(self) -> None:
        os.kill(self.pid(), signal.SIGKILL)

    def some_time_passes(self) -> None:
        """Since it was read back."""
        age(self.places)

    def word(self) -> GuardWord:
        words = self.journal.timers.guards_of(self.story.label)
        return next(word for word in words if word.name == "fuse")

    def state(self) -> FuseState:
        state = self.fuse.read()
        assert state is not None
        return state


@pytest.fixture
def guarded(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    monkeypatch.setenv("GPURUN_HOME", str(home.places.root))
    made = Guarded(home)
    yield made
    made.fuse.disarm()
    made.destroy()
    made.journal.close()


def age(places: Places) -> None:
    with closing(sqlite3.connect(places.database, timeout=60)) as raw, raw:
        raw.execute("UPDATE guards SET read_back_at = read_back_at - 60 WHERE name = 'fuse'")


def test_a_fuse_that_was_killed_is_armed_again(guarded: Guarded) -> None:
    guarded.contact()
    guarded.kill()
    guarded.some_time_passes()
    guarded.tend()
    assert guarded.state().holds(1)
    assert guarded.word().state == "armed"
    assert guarded.said == ["the fuse was armed again"]


def test_a_fuse_whose_files_were_removed_is_armed_again(guarded: Guarded) -> None:
    guarded.contact()
    shutil.rmtree(guarded.home)
    guarded.some_time_passes()
    guarded.tend()
    assert guarded.state().holds(1)


def test_a_fuse_with_an_older_timer_is_given_the_one_in_force_at_once(guarded: Guarded) -> None:
    guarded.contact()
    guarded.journal.timers.import_timer(guarded.story.timer(2, minutes=5))
    guarded.tend()
    assert guarded.state().holds(2)
    assert guarded.word().seq_read == 2


def test_what_was_read_just_now_is_not_read_again(guarded: Guarded) -> None:
    guarded.contact()
    first = guarded.word()
    guarded.tend()
    assert guarded.word() == first
    guarded.some_time_passes()
    guarded.tend()
    read_at = guarded.word().read_back_at
    assert read_at is not None and first.read_back_at is not None
    assert read_at > first.read_back_at
    assert guarded.said == []


def test_a_fuse_that_cannot_be_armed_is_no_guard_and_said_once(guarded: Guarded) -> None:
    guarded.contact()
    guarded.kill()
    timer = guarded.home / "fuse.timer"
    kept = timer.read_text()
    timer.write_text("1 another-label 2 3 4 5 - 0\n")
    for _ in range(2):
        guarded.some_time_passes()
        guarded.tend()
    assert guarded.word().state == "unknown"
    assert guarded.said == ["the fuse cannot be armed again: until it is, it is no guard"]
    timer.write_text(kept)
    guarded.tend()
    assert guarded.word().state == "armed"
    assert guarded.said[1:] == ["the fuse was armed again"]
    with closing(sqlite3.connect(guarded.places.database)) as raw:
        events = raw.execute(
            "SELECT detail FROM events WHERE what = 'guard' ORDER BY id"
        ).fetchall()
    assert [detail for (detail,) in events] == guarded.said


def test_before_first_contact_there_is_no_fuse_to_look_after(guarded: Guarded) -> None:
    guarded.tend()
    assert not (guarded.home / "fuse.pid").exists()


def test_a_box_that_is_ending_gets_no_new_fuse(guarded: Guarded) -> None:
    guarded.contact()
    guarded.kill()
    guarded.some_time_passes()
    guarded.journal.endings.end_run(guarded.story.run_id, Ending.KILL, "killed", 60)
    guarded.tend()
    assert not guarded.state().alive


def held_in(home: Home) -> Path:
    """A recipe whose phases data, verify and train each wait for a file in the box."""
    wait = "until [ -e go.{0} ]; do sleep 0.1; done"
    build = f"{wait.format('data')}; {BUILD}"
    path = home.recipe(
        build=build,
        train=f"{wait.format('train')}\nmkdir -p out; echo 42 > out/result.txt",
        setup_minutes=30,
        run_minutes=30,
    )
    text = path.read_text().replace("  verify:\n", f"  verify:\n    run: {wait.format('verify')}\n")
    path.write_text(text)
    return path


def let_go(home: Home, phase: str) -> None:
    [root] = home.places.boxes.glob("gpurun-*/root")
    (root / f"go.{phase}").touch()


def lose_both(home: Home) -> None:
    """Keeper and fuse are killed; the wait for both to be there again."""
    [pid_file] = home.places.root.glob("fuses/*/fuse.pid")
    old = pid_file.read_text()
    os.kill(int(old.split()[0]), signal.SIGKILL)
    home.kill_keeper()
    age(home.places)
    home.until(lambda: holder(home.places.keeper_lock) is not None, 60)
    home.until(lambda: pid_file.read_text() != old, 120)


@pytest.mark.timeout(900)
def test_in_every_phase_both_come_back(home: Home) -> None:
    run = home.up(held_in(home))
    for phase in ("data", "verify", "train"):
        home.until_phase(run, phase)
        lose_both(home)
        let_go(home, phase)
    home.until_finished(run)
    document = home.document(run)
    assert (document["state"], document["exit_code"]) == ("done", 0), home.logs()
    assert home.box_processes() == []


def test_a_driver_that_took_over_looks_after_them_too(home: Home) -> None:
    run = home.up(held_in(home))
    home.until_phase(run, "data")
    first = holder(home.places.run_lock(run))
    assert first is not None
    os.kill(first, signal.SIGKILL)
    home.until(lambda: holder(home.places.run_lock(run)) not in (None, first))
    lose_both(home)
    assert home.run("kill", run, "--yes", "--no-collect").returncode == 0
    home.until_finished(run)
    assert home.document(run)["state"] == "killed"


@pytest.mark.box
def test_a_fuse_on_a_box_is_reached_beside_the_work_there(tmp_path: Path) -> None:
    with box() as machine:
        hosts = Hosts(tmp_path / "home", machine)
        try:
            run = hosts.begin(held_in(hosts))
            hosts.until_phase(run, "data", 120)
            pid_file = run_root(machine) / ".gpurun/fuse/fuse.pid"
            old = pid_file.read_text()
            machine.sh(f"kill -KILL {old.split()[0]}")
            age(hosts.places)
            hosts.until(lambda: pid_file.read_text() != old, 120)
            assert hosts.run("kill", run, "--yes", "--no-collect").returncode == 0
            assert hosts.finished(run)["state"] == "killed"
            hosts.until(lambda: left_on(machine) == [], 120)
        finally:
            hosts.close()


def test_while_a_run_ends_its_keeper_comes_back(home: Home) -> None:
    """The training takes its time to save; nobody but the keeper would end the box in time."""
    slow = f"trap 'until [ -e go.train ]; do sleep 0.1; done; exit 0' TERM; {WAITS}"
    run = home.up(home.recipe(train=slow, grace_minutes=2))
    home.until_phase(run, "train")
    home.until(lambda: "result.txt" in str(list(home.places.boxes.rglob("out/*"))))
    killing = home.start("kill", run, "--yes")
    home.until_phase(run, "collect")
    killing.kill()  # it would bring the keeper back itself
    killing.communicate()
    home.kill_keeper()
    home.until(lambda: holder(home.places.keeper_lock) is not None, 60)
    let_go(home, "train")
    home.until_finished(run)
    assert home.document(run)["state"] == "killed"
    assert home.box_processes() == []
