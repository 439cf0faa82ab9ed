"""A journal that is locked, corrupt, full, restored, newer, copied or read-only (F37-F42).

Whatever it is: nothing is bought with it, and everything can still be ended.
"""

import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpurun import keeper
from gpurun.clock import SystemClock
from gpurun.locks import holder
from gpurun.places import Places
from gpurun.store.armed import armed
from gpurun.store.schema import backup
from gpurun.trust import RESERVE_BYTES, may_buy
from tests.homes import GPURUN, WAITS, Home


@pytest.fixture
def running(home: Home) -> str:
    """A run that trains until it is ended."""
    run = home.up(home.recipe(train=WAITS))
    home.until_phase(run, "train")
    home.until(lambda: bool(home.box_processes()))
    return run


@contextmanager
def locked(home: Home) -> Iterator[None]:
    """By another program, as long as the block lasts."""
    with sqlite3.connect(home.places.database, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")
    other.close()


def spoil(home: Home) -> None:
    """As a bad disk would: the first pages, and the log beside them, are garbage."""
    for suffix in ("", "-wal"):
        path = home.places.database.with_name(home.places.database.name + suffix)
        if path.exists():
            with path.open("r+b") as file:
                file.write(os.urandom(8192))


def set_version(home: Home, version: str) -> None:
    with sqlite3.connect(home.places.database) as raw:
        raw.execute("UPDATE alembic_version SET version_num = ?", (version,))
    raw.close()


def in_namespace(home: Home, mount: str, script: str) -> "subprocess.CompletedProcess[str]":
    """A script of sh with a mount of its own, and a user namespace where we are not root."""
    alone = ["unshare", "--mount"] + ([] if os.getuid() == 0 else ["--map-root-user"])
    home.places.root.mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        [*alone, "sh", "-c", f"set -e\n{mount}\n{script}"],
        cwd=home.work,
        env=home.env | {"STATE": str(home.places.root), "GPURUN": str(GPURUN)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_kill_works_while_another_program_holds_the_database(home: Home, running: str) -> None:
    with locked(home):
        done = home.run("kill", running, "--yes", "--no-collect")
        home.until(lambda: home.box_processes() == [], 30)
    assert done.returncode == 0, done.stderr
    home.until_finished(running)


def test_nothing_is_bought_while_another_program_holds_the_database(home: Home) -> None:
    home.run("up", home.recipe(), "--yes", "-d")
    run = home.only_run()
    home.until_finished(run)
    with locked(home):
        done = home.run("up", home.recipe(), "--yes")
    assert done.returncode == 2
    assert "locked" in done.stderr


def test_status_answers_while_another_program_holds_the_database(home: Home, running: str) -> None:
    with locked(home):
        assert home.document(running)["phase"] == "train"
    home.run("kill", running, "--yes", "--no-collect")
    home.until_finished(running)


def test_a_corrupt_journal_can_still_be_ended_and_bought_from_no_more(
    home: Home, running: str
) -> None:
    spoil(home)
    status = home.run("status")
    assert status.returncode == 0
    assert "timers.log" in status.stdout + status.stderr
    refused = home.run("up", home.recipe(name="other"), "--yes")
    assert refused.returncode == 2
    done = home.run("kill", "--all", "--yes")
    assert done.returncode == 0, done.stderr
    assert home.box_processes() == []


def test_the_timer_ends_a_box_whose_journal_is_corrupt(home: Home) -> None:
    run = home.up(home.recipe(train=WAITS, run_minutes=0.2, grace_minutes=0.05))
    home.until_phase(run, "train")
    home.until(lambda: bool(home.box_processes()))
    home.kill_keeper()
    spoil(home)
    home.run("status")
    home.until(lambda: keeper.running(home.places) is not None, 20)
    home.until(lambda: home.box_processes() == [], 60)


def test_a_newer_journal_is_refused_for_buying_but_not_for_ending(home: Home, running: str) -> None:
    set_version(home, "9999")
    refused = home.run("up", home.recipe(name="other"), "--yes")
    assert refused.returncode == 2
    assert "newer" in refused.stderr
    assert home.document(running)["phase"] == "train"
    assert home.run("kill", running, "--yes").returncode == 0
    home.until(lambda: home.box_processes() == [], 30)


def test_an_older_copy_of_the_journal_ends_what_it_has_forgotten(home: Home) -> None:
    home.run("up", home.recipe(), "--yes")
    old = home.root / "old.db"
    backup(home.places.database, old)
    run = home.up(home.recipe(name="later", train=WAITS))
    home.until_phase(run, "train")
    home.until(lambda: bool(home.box_processes()))
    driver = holder(home.places.run_lock(run))
    assert driver is not None
    os.kill(driver, signal.SIGSTOP)  # it would start a keeper, which finds half a journal
    home.kill_keeper()
    for path in home.places.root.glob("gpurun.db*"):
        path.unlink()
    shutil.copy(old, home.places.database)
    os.kill(driver, signal.SIGCONT)
    refused = home.run("up", home.recipe(name="other"), "--yes")
    assert refused.returncode == 2
    assert "keeper adopt" in refused.stderr
    done = home.run("kill", run, "--yes")
    assert done.returncode == 0, done.stderr
    home.until(lambda: home.box_processes() == [], 30)
    assert home.run("keeper", "adopt").returncode == 0
    assert home.run("up", home.recipe(name="again"), "--yes").returncode == 0


def test_a_journal_of_another_machine_ends_nothing_by_itself(home: Home, running: str) -> None:
    home.kill_keeper()
    with sqlite3.connect(home.places.database) as raw:
        raw.execute("UPDATE owner SET machine = 'elsewhere'")
    raw.close()
    refused = home.run("up", home.recipe(name="other"), "--yes")
    assert refused.returncode == 2
    assert "another machine" in refused.stderr
    assert home.run("status").returncode == 0
    assert home.box_processes() != []
    done = home.run("kill", running, "--yes")
    assert done.returncode == 0, done.stderr
    assert "another machine" in done.stderr
    home.until(lambda: home.box_processes() == [], 30)


def test_a_run_of_another_machine_is_not_resumed(home: Home, running: str) -> None:
    """Its own driver may live there: two would act on one box."""
    home.kill_keeper_and_drivers()
    home.until(lambda: holder(home.places.run_lock(running)) is None, 10)
    with sqlite3.connect(home.places.database) as raw:
        raw.execute("UPDATE owner SET machine = 'elsewhere'")
    raw.close()
    refused = home.run("resume", running)
    assert refused.returncode == 2
    assert "another machine" in refused.stderr
    assert holder(home.places.run_lock(running)) is None
    refused = home.run("keeper", "start")
    assert refused.returncode == 2
    assert "the keeper is not started" in refused.stderr
    assert home.box_processes() != []


def test_a_clock_before_the_last_entry_buys_nothing_and_still_kills(
    home: Home, running: str
) -> None:
    """As when it has lost its battery: what is written already is of a time to come."""
    with sqlite3.connect(home.places.database) as raw:
        raw.execute(
            "INSERT INTO events (at, run_id, label, who, what, detail) "
            "SELECT max(at) + 7200, '', '', 'a test', 'note', '' FROM events"
        )
    raw.close()
    for command in (("up", home.recipe(name="other")), ("extend", running, "1m")):
        refused = home.run(*command, "--yes")
        assert refused.returncode == 2
        assert "this machine's clock says" in refused.stderr
        assert "killing still works" in refused.stderr
    assert home.run("status").returncode == 0
    done = home.run("kill", running, "--yes", "--no-collect")
    assert done.returncode == 0, done.stderr
    home.until(lambda: home.box_processes() == [], 30)


def test_purchases_at_one_moment_all_find_a_reserve(tmp_path: Path) -> None:
    """Each makes it where there is none yet; that another was first is no lack of room."""
    places = Places(tmp_path / "state").ensure()
    for _ in range(8):
        places.reserve.unlink(missing_ok=True)
        with ThreadPoolExecutor(4) as pool:
            for journal in pool.map(may_buy, [places] * 4, [SystemClock()] * 4):
                journal.close()
        assert places.reserve.stat().st_size == RESERVE_BYTES


def test_a_full_disk_buys_nothing(home: Home) -> None:
    done = in_namespace(
        home,
        'mount -t tmpfs -o size=1500k,mode=700 tmpfs "$STATE"',
        f'dd if=/dev/zero of="$STATE/filler" bs=1k 2>/dev/null || :\n'
        f'"$GPURUN" up {home.recipe()} --yes',
    )
    assert done.returncode == 2, done.stderr
    assert not any("Traceback" in text for text in (done.stdout, done.stderr))


def test_a_run_on_a_disk_that_fills_up_can_be_killed(home: Home) -> None:
    recipe = home.recipe(train=WAITS)
    done = in_namespace(
        home,
        'mount -t tmpfs -o size=1200m,mode=700 tmpfs "$STATE"',
        f'''run=$("$GPURUN" up {recipe} --yes -d | tail -n 1)
        until "$GPURUN" status "$run" --json | grep -q '"phase": "train"'; do sleep 0.3; done
        dd if=/dev/zero of="$STATE/filler" bs=1M 2>/dev/null || :
        dd if=/dev/zero of="$STATE/filler2" bs=1k 2>/dev/null || :
        "$GPURUN" kill "$run" --yes --no-collect
        for i in $(seq 100); do ls "$STATE"/boxes | grep -q gpurun || break; sleep 0.2; done
        ls "$STATE"/boxes
        kill "$(cat "$STATE"/keeper.lock)"''',
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "gpurun-" not in done.stdout.splitlines()[-1:]
    assert home.box_processes() == []


def test_a_read_only_state_directory_buys_nothing(home: Home) -> None:
    home.run("up", home.recipe(), "--yes")
    home.kill_keeper()
    done = in_namespace(
        home,
        'mount --bind "$STATE" "$STATE"; mount -o remount,ro,bind "$STATE"',
        f'"$GPURUN" status >&2; "$GPURUN" up {home.recipe(name="other")} --yes',
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


def test_the_database_is_migrated_from_each_released_version_with_a_live_run_in_it(
    tmp_path: Path,
) -> None:
    from gpurun.store import Journal
    from gpurun.store.database import HEAD

    stored = sorted((Path(__file__).parent / "journals").glob("*.sql"))
    assert stored
    for dump in stored:
        path = tmp_path / f"{dump.stem}.db"
        with sqlite3.connect(path) as raw:
            raw.executescript(dump.read_text())
        raw.close()
        journal = Journal(path, SystemClock())
        journal.database.migrate()
        assert journal.database.version() == HEAD
        assert [timer.kind for _, timer in armed(journal.database)] == ["run"]
        assert [run.state for run in journal.runs.unfinished()] == ["active"]
        journal.close()
