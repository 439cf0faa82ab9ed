"""`kill`: its ending is written before all else; where the journal takes none, the box goes too."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.blackbox import KILLING, killed_labels, read_entries
from gpurun.clock import SystemClock
from gpurun.locks import hold
from tests.accounts import Accounts, accounts_of
from tests.chaos.disk import fill, free, small_disk
from tests.homes import WAITS, Home
from tests.stories import Story, journal_at
from tests.test_trouble import locked

PLUGINS = Path(__file__).parent / "plugins"
LONG_S = 180


def trains(home: Home, *words: str) -> str:
    """A run that trains until it is ended."""
    run = home.up(home.recipe(train=WAITS, run_minutes=60, grace_minutes=2), *words)
    home.until_phase(run, "train", LONG_S)
    home.until(lambda: bool(home.box_processes()), LONG_S)
    return run


def until_killed(home: Home, run: str) -> None:
    home.until_finished(run, LONG_S)
    document = home.document(run)
    assert (document["state"], document["exit_code"]) == ("killed", 7), home.logs()


def result_of(home: Home, *words: str, code: int = 0) -> dict[str, object]:
    done = home.run("kill", *words, "--yes", "--json", timeout_s=LONG_S)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    [found] = json.loads(done.stdout)["runs"]
    return dict(found)


@pytest.mark.parametrize("words", [[], ["--no-collect"]])
def test_a_provider_that_cannot_be_made_here_keeps_no_ending_from_being_written(
    home: Home, words: list[str]
) -> None:
    """The shell that kills lacks what the provider takes; driver and keeper have it."""
    home.env["PYTHONPATH"] = os.pathsep.join([str(PLUGINS), os.environ.get("PYTHONPATH", "")])
    run = trains(home, "--provider", "flaky")
    del home.env["PYTHONPATH"]
    assert result_of(home, run, *words)["state"] == "killed"
    until_killed(home, run)
    assert home.box_processes() == []
    assert bool(home.document(run)["collected_at"]) is not bool(words)


def test_what_is_killed_while_the_journal_is_locked_is_killed_in_it_afterwards(home: Home) -> None:
    run = trains(home)
    with locked(home):
        found = result_of(home, run, "--no-collect")
        assert home.box_processes() == []
        assert found["state"] == "killed"
        assert "its end is not written" in str(found["said"])
        assert "the keeper does that once it can" in str(found["said"])
    until_killed(home, run)


def test_a_kill_that_is_itself_killed_while_the_journal_is_locked_is_gone_on_with(
    home: Home,
) -> None:
    """By the keeper, from the note in the black box; by no timer."""
    run = trains(home)
    with locked(home):
        killing = home.start("kill", run, "--yes", "--no-collect")
        home.until(lambda: bool(killed_labels(home.places.blackbox)), LONG_S)
        os.killpg(killing.pid, signal.SIGKILL)
        killing.communicate()
        home.until(lambda: home.box_processes() == [], LONG_S)
    until_killed(home, run)


def test_a_lock_that_passes_costs_no_results(home: Home) -> None:
    """Longer than SQLite waits for it: `kill` outwaits it, as there may be something to collect."""
    run = trains(home)
    with locked(home):
        killing = home.start("kill", run, "--yes")
        home.until(lambda: has_open(killing.pid, home.places.database), LONG_S)
        SystemClock().sleep(8)
    out, err = killing.communicate(timeout=LONG_S)
    assert killing.returncode == 0, out + err
    until_killed(home, run)
    assert home.document(run)["collected_at"]


def has_open(pid: int, path: Path) -> bool:
    return any(each.resolve() == path for each in Path(f"/proc/{pid}/fd").iterdir())


@pytest.mark.box
def test_a_run_on_a_full_disk_without_its_reserve_is_killed(home: Home) -> None:
    with small_disk(home.places.root):
        run = trains(home)
        home.places.reserve.unlink()
        fill(home.places.root)
        done = home.run("kill", run, "--yes", "--no-collect", timeout_s=LONG_S)
        assert done.returncode == 0, done.stdout + done.stderr
        assert home.box_processes() == []
        free(home.places.root)
        until_killed(home, run)
        home.close()


def test_a_run_that_has_bought_nothing_is_not_called_ended_while_the_journal_is_locked(
    home: Home,
) -> None:
    clock = SystemClock()
    story = Story(journal_at(home.places.root, clock), clock).begun()
    with locked(home), hold(home.places.keeper_lock):
        done = home.run("kill", story.run_id, "--yes", "--no-collect")
    assert done.returncode == 2
    assert "nothing of it is known to bill; its end is not written" in done.stderr
    assert story.journal.runs.get(story.run_id).ending is None


# Several, at clouds, by the black box alone.


@pytest.fixture
def accounts(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Accounts]:
    with accounts_of(home, monkeypatch) as found:
        yield found


def killed_all(accounts: Accounts, code: int) -> dict[str, str]:
    """The state of each run, after `kill --all` by a corrupt journal."""
    accounts.spoil_journal()
    done = accounts.home.run("kill", "--all", "--yes", "--json", timeout_s=LONG_S)
    runs = json.loads(done.stdout).get("runs", [])
    assert done.returncode == code, [run["said"] for run in runs]
    return {run["id"]: run["state"] for run in runs}


def test_all_runs_of_a_corrupt_journal_are_ended_at_once_and_nothing_else(
    accounts: Accounts,
) -> None:
    """Each is asked to end before one is proven gone: that takes 20 s, for all of them together."""
    runs = ["run00001", "run00002"]
    for run in runs:
        accounts.trace(accounts.run_of(accounts.vast, run_id=run)[0])
    others = accounts.rent(accounts.vast, "gpurun-zzzzzz-run00001-bbbbbb")
    assert killed_all(accounts, 0) == dict.fromkeys(runs, "killed")
    assert accounts.alive(accounts.vast) == {others}
    written = accounts.home.places.blackbox.read_text().splitlines()[1:]
    states = [line.split()[9] for line in written]
    assert states == ["seen"] * 2 + [KILLING] * 2 + ["gone"] * 2


def test_what_one_cloud_keeps_from_being_proven_the_other_does_not(accounts: Accounts) -> None:
    """A key of another account ends nothing there, and proves nothing."""
    accounts.trace(accounts.run_of(accounts.vast, run_id="run00001")[0])
    story, pod = accounts.run_of(accounts.prime, run_id="run00002")
    accounts.trace(story)
    accounts.prime.fault("key_of_other_account")
    assert killed_all(accounts, 10) == {"run00001": "killed", "run00002": "still_billing"}
    accounts.prime.clear()
    assert accounts.alive(accounts.vast) == set()
    assert accounts.alive(accounts.prime) == {pod}
    entries = read_entries(accounts.home.places.blackbox)
    assert entries[story.label].state == KILLING, "a keeper goes on from there"


def test_what_can_be_written_nowhere_is_ended_and_said(accounts: Accounts) -> None:
    accounts.trace(accounts.run_of(accounts.vast)[0])
    lock = accounts.home.places.blackbox.with_name("timers.log.lock")
    accounts.spoil_journal()
    with hold(lock):
        found = result_of(accounts.home, "--all", "--no-collect")
    assert found["state"] == "killed"
    assert "nor could it be noted" in str(found["said"])
    assert accounts.alive(accounts.vast) == set()
