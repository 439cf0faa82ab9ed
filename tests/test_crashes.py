"""kill -9 of whatever may die: no process of a box survives its timer, and no box is forgotten."""

import os
import signal
from contextlib import suppress

import pytest

from gpurun import keeper
from gpurun.clock import SystemClock
from gpurun.locks import holder
from gpurun.phases import ORDER
from provisioners.local import Local
from tests.homes import WAITS, Home

PAUSE = "sleep 3; mkdir -p data/train data/test; touch data/train/dataset.json"
PAUSE += " data/test/dataset.json"


def kill_driver(home: Home, run: str) -> None:
    home.until(lambda: holder(home.places.run_lock(run)) is not None, 20)
    pid = holder(home.places.run_lock(run))
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_the_command_line_may_be_killed_in_every_phase(home: Home) -> None:
    """`up` first, then `resume`, which shows the same run: each is killed in the next phase."""
    train = "mkdir -p out; sleep 2; echo 42 > out/result.txt"
    following = home.start("up", home.recipe(build=PAUSE, train=train), "--yes")
    run = home.only_run()
    journal = home.journal()
    for number, phase in enumerate(ORDER):
        home.until(lambda at=number: ORDER.index(journal.runs.get(run).phase) >= at, 60)
        following.kill()
        following.communicate()
        if phase != ORDER[-1]:
            following = home.start("resume", run)
    journal.close()
    home.until_finished(run)
    assert home.document(run)["state"] == "done", home.logs()
    assert home.box_processes() == []


@pytest.mark.parametrize("phase", ["data", "train"])
def test_the_keeper_takes_over_from_a_killed_driver(home: Home, phase: str) -> None:
    train = "mkdir -p out; echo x >> out/launches; sleep 4; echo 42 > out/result.txt"
    run = home.up(home.recipe(build=PAUSE, train=train))
    home.until_phase(run, phase)
    kill_driver(home, run)
    home.until_finished(run)
    assert home.document(run)["state"] == "done", home.logs()
    launches = next((home.work / "runs" / run).rglob("launches")).read_text()
    assert launches == "x\n"  # launched once, whoever drives
    assert home.box_processes() == []


def test_resume_goes_on_where_the_driver_was_killed(home: Home) -> None:
    run = home.up(home.recipe(build=PAUSE))
    home.until_phase(run, "data")
    home.kill_keeper_and_drivers()
    done = home.run("resume", run)
    assert done.returncode == 0, done.stderr
    home.until_finished(run)
    assert home.document(run)["state"] == "done", home.logs()


def test_the_timer_holds_when_driver_and_keeper_are_killed(home: Home) -> None:
    run = home.up(home.recipe(train=WAITS, run_minutes=0.1, grace_minutes=0.05))
    home.until_phase(run, "train")
    home.until(lambda: bool(home.box_processes()))
    home.kill_keeper_and_drivers()
    home.run("status")  # any command revives the keeper
    home.until(lambda: keeper.running(home.places) is not None, 20)
    home.until_finished(run)
    assert home.document(run)["state"] == "deadline", home.logs()
    assert home.box_processes() == []


def test_what_outlived_its_timer_is_acted_on_within_five_seconds_of_the_next_command(
    home: Home,
) -> None:
    """And its receipt says why it was ended, and what proves that nothing bills."""
    run = home.up(home.recipe(train=WAITS, run_minutes=0.05, grace_minutes=0.02))
    home.until_phase(run, "train")
    home.until(lambda: bool(home.box_processes()))
    home.kill_keeper_and_drivers()
    journal, clock = home.journal(), SystemClock()
    [attempt] = journal.attempts.of_run(run)
    timer = journal.timers.of(attempt.label)
    assert timer is not None
    clock.sleep(max(0.0, (timer.ends_at - clock.now()).total_seconds()) + 1)
    assert home.box_processes(), "nobody is there to end it; its fuse waits two minutes more"
    typed_s = clock.boot_s()
    assert home.run("status").returncode == 0
    home.until(lambda: journal.runs.get(run).ending is not None, 20)
    assert clock.boot_s() - typed_s <= 5
    home.until_finished(run)
    assert home.box_processes() == []
    receipt = home.document(run)["receipt"]
    evidence = receipt["evidence"]
    assert (receipt["ended_by"], evidence["label"]) == ("deadline", attempt.label)
    assert evidence["account"] == attempt.account_id and evidence["acked_s"]
    lists = [begun_s for account, begun_s, *rows in evidence["listings"] if rows == [[], []]]
    assert len(lists) >= 2 and lists[-1] - lists[0] >= Local.traits.proof_gap_s
    assert evidence["lookups"][-1][2] is False, "asked for by its id, it is not there"
    journal.close()


def test_a_killed_keeper_is_started_again_by_its_parent(home: Home) -> None:
    run = home.up(home.recipe(train=WAITS, run_minutes=1))
    home.until_phase(run, "train")
    first = keeper.running(home.places)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    home.until(lambda: keeper.running(home.places) not in (None, first), 20)
    home.run("kill", run, "--yes", "--no-collect")
    home.until_finished(run)


def test_a_driver_killed_before_it_sent_anything_leaves_nothing(home: Home) -> None:
    run = home.up(home.recipe())
    home.until_phase(run, "rent")
    kill_driver(home, run)
    home.until_finished(run, within_s=120)
    assert home.document(run)["state"] in ("failed", "done")
    assert home.box_processes() == []


def test_a_box_that_is_removed_by_hand_ends_its_run(home: Home) -> None:
    run = home.up(home.recipe(train=WAITS))
    home.until_phase(run, "train")
    home.until(lambda: bool(home.box_processes()))
    for pid in home.box_processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    home.until_finished(run)
    assert home.document(run)["exit_code"] == 5
    assert home.box_processes() == []
