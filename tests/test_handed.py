"""A key that only the shell of `up` has: it reaches the keeper, and nothing that outlives it."""

import fcntl
import os
import resource
import signal
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from gpurun import keeper
from gpurun.filesystem import kind_of
from gpurun.keeper import handed
from gpurun.locks import holder
from gpurun.places import Places
from tests.boxes import make_key
from tests.cloudruns.scene import FOUR_H100
from tests.clouds.serve import Cloud, cloud
from tests.clouds.stub import StubBoxes
from tests.homes import Home
from tests.test_trouble import in_namespace

PATIENCE_S = 180
KEYS = {"VAST_API_KEY": "hunter2", "VAST_URL": "http://127.0.0.1:1"}


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    made = Places(tmp_path / "state").ensure()
    yield made
    handed.forget(made)


@pytest.fixture
def vast(home: Home) -> Iterator[Cloud]:
    """Its key is in no file of this home."""
    with cloud("vast", boxes=StubBoxes()) as running:
        key = home.user / ".ssh" / "id_ed25519"
        key.parent.mkdir(mode=0o700)
        make_key(key)
        yield running
        home.close()
    handed.forget(home.places)


class Shell:
    """While it is open, commands of this home find the key in their environment."""

    def __init__(self, home: Home, cloud: Cloud) -> None:
        self._home = home
        self._has = {"VAST_API_KEY": cloud.api_key, "VAST_URL": cloud.url}

    def __enter__(self) -> None:
        self._home.env |= self._has

    def __exit__(self, *_: object) -> None:
        for name in self._has:
            del self._home.env[name]


def up(home: Home) -> str:
    """A run that waits for its box, whose machine nobody can enter; its id."""
    run = home.up(home.recipe(setup_minutes=30), "--provider", "vast", *FOUR_H100)
    journal = home.journal()
    home.until(lambda: journal.attempts.live("vast")[0].instance_id is not None, PATIENCE_S)
    journal.close()
    return run


def kill_driver(home: Home, run: str) -> None:
    """It has the key by inheritance."""
    if pid := holder(home.places.run_lock(run)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def files(places: Places) -> list[Path]:
    """What lies in memory for this home."""
    return [
        path
        for folder in handed.folders()
        if folder.exists()
        for path in folder.iterdir()
        if path.name.startswith(handed._file(folder, places).name)
    ]


def processes(home: Home) -> list[int]:
    """Ours that work for this home."""
    mark = f"GPURUN_HOME={home.places.root}".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found


def test_what_is_handed_over_is_closed_to_others_and_not_in_the_state_directory(
    places: Places,
) -> None:
    handed.hand(places, "vast", KEYS)
    [path] = files(places)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert kind_of(path.parent) in handed.IN_MEMORY
    assert handed.read(places) == {"vast": KEYS}
    kept = [each.read_bytes() for each in places.root.rglob("*") if each.is_file()]
    assert not any(b"hunter2" in each for each in kept)


def test_it_stands_above_the_environment_and_only_for_its_own_cloud(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VAST_API_KEY", "older")
    monkeypatch.setenv("PRIME_API_KEY", "another cloud's")
    handed.hand(places, "vast", {"VAST_API_KEY": "hunter2"})
    monkeypatch.setenv("VAST_URL", "http://127.0.0.1:2")
    found = handed.environ(handed.read(places))
    assert (found["VAST_API_KEY"], found["PRIME_API_KEY"]) == ("hunter2", "another cloud's")
    assert "VAST_URL" not in found, "it belongs to the older key"


@pytest.mark.parametrize("damage", ["others can read it", "a link", "not JSON", "a list"])
def test_what_another_user_may_have_put_there_is_not_read(places: Places, damage: str) -> None:
    handed.hand(places, "vast", KEYS)
    [path] = files(places)
    match damage:
        case "others can read it":
            path.chmod(0o644)
        case "a link":
            target = places.root / "target"
            target.write_bytes(path.read_bytes())
            target.chmod(0o600)
            path.unlink()
            path.symlink_to(target)
        case "not JSON":
            path.write_text("{")
        case _:
            path.write_text("[1]")
    assert handed.read(places) == {}


@pytest.mark.parametrize("trap", ["a pipe", "a folder"])
def test_what_is_no_file_there_is_neither_waited_for_nor_left_open(
    places: Places, trap: str
) -> None:
    """Each user can make one in /dev/shm."""
    handed.hand(places, "vast", KEYS)
    [path] = files(places)
    path.unlink()
    make = os.mkfifo if trap == "a pipe" else os.mkdir
    make(path, 0o600)
    before = len(list(Path("/proc/self/fd").iterdir()))
    reading = Thread(target=lambda: [handed.read(places) for _ in range(9)], daemon=True)
    reading.start()
    reading.join(timeout=60)
    waits = reading.is_alive()
    if waits:  # it opens for reading, and goes on when somebody writes
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
    after = len(list(Path("/proc/self/fd").iterdir()))
    path.rmdir() if trap == "a folder" else path.unlink()
    assert not waits
    assert after <= before


def test_a_key_that_cannot_be_written_takes_no_other_with_it(places: Places) -> None:
    """As when the memory is full."""
    handed.hand(places, "vast", KEYS)
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            handed.hand(places, "prime", {"PRIME_API_KEY": "hunter3"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
        signal.signal(signal.SIGXFSZ, before)
    assert handed.read(places) == {"vast": KEYS}
    assert len(files(places)) == 1
    handed.hand(places, "prime", {"PRIME_API_KEY": "hunter3"})
    assert handed.read(places) == {"vast": KEYS, "prime": {"PRIME_API_KEY": "hunter3"}}


def test_what_a_writer_left_that_was_killed_is_in_nobodys_way(places: Places) -> None:
    handed.hand(places, "vast", KEYS)
    [path] = files(places)
    path.rename(f"{path}.new")
    handed.hand(places, "prime", {"PRIME_API_KEY": "hunter3"})
    assert handed.read(places) == {"prime": {"PRIME_API_KEY": "hunter3"}}
    assert files(places) == [path]


def test_the_keeper_does_not_wait_for_one_who_hands_a_key_over(places: Places) -> None:
    handed.hand(places, "vast", KEYS)
    other = os.open(places.root, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    trying = ThreadPoolExecutor(1).submit(handed.forget, places, unless=lambda: False)
    waited = wait([trying], timeout=60).not_done
    os.close(other)
    assert not waited
    assert isinstance(trying.exception(), BlockingIOError)
    assert handed.read(places) == {"vast": KEYS}
    assert handed.forget(places, unless=lambda: False)


def test_it_is_kept_while_something_needs_it(places: Places) -> None:
    handed.hand(places, "vast", KEYS)
    assert not handed.forget(places, unless=lambda: True)
    assert handed.read(places) == {"vast": KEYS}
    assert handed.forget(places)
    assert files(places) == []


def test_only_a_folder_in_memory_is_taken() -> None:
    assert handed.place([Path("/proc"), Path("/nowhere")]) is None


def test_a_keeper_that_ran_without_the_key_ends_the_box_when_the_shell_is_gone(
    home: Home, vast: Cloud
) -> None:
    assert home.run("keeper", "start").returncode == 0
    first = keeper.running(home.places)
    with Shell(home, vast):
        run = up(home)
    assert keeper.running(home.places) == first, "it was handed the key, not started anew"
    home.kill_keeper()
    kill_driver(home, run)
    assert home.run("keeper", "start").returncode == 0
    killing = home.start("kill", run, "--yes", "--no-collect")
    home.until(lambda: not vast.meter().instances[0].alive, PATIENCE_S)
    killing.kill()  # the proof takes minutes
    assert "there is no key" not in killing.communicate()[1]
    assert vast.api_key not in home.logs()


def test_a_driver_that_the_keeper_starts_has_the_key_though_its_file_went_at_logout(
    home: Home, vast: Cloud
) -> None:
    assert home.run("keeper", "start").returncode == 0
    with Shell(home, vast):
        run = up(home)
    [path] = files(home.places)
    path.unlink()
    lock = home.places.run_lock(run)
    first = holder(lock)
    kill_driver(home, run)
    home.until(lambda: holder(lock) not in (None, first), PATIENCE_S)
    key = f"VAST_API_KEY={vast.api_key}".encode()
    assert key in Path(f"/proc/{holder(lock)}/environ").read_bytes().split(b"\0")


def test_no_place_but_the_memory_holds_the_key(home: Home, vast: Cloud) -> None:
    with Shell(home, vast):
        up(home)
    secret = vast.api_key.encode()
    for path in home.root.rglob("*"):
        with suppress(OSError):  # one that has gone meanwhile, or no file
            assert secret not in path.read_bytes()
    assert len(processes(home)) >= 2
    for pid in processes(home):
        with suppress(OSError):
            assert secret not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_what_was_handed_over_is_forgotten_at_keeper_stop_for_good(home: Home, vast: Cloud) -> None:
    """Though a driver goes on that has the key, and the next command starts a keeper again."""
    with Shell(home, vast):
        run = up(home)
        [_path] = files(home.places)
    stopped = home.run("keeper", "stop")
    assert (stopped.returncode, files(home.places)) == (0, [])
    assert "is forgotten" in stopped.stderr
    with Shell(home, vast):
        assert home.run("status").returncode == 0
        home.until(lambda: keeper.running(home.places) is not None)
    assert home.run("keeper", "stop").returncode == 0
    kill_driver(home, run)
    home.until(lambda: processes(home) == [])
    assert files(home.places) == []


def test_it_goes_with_the_last_run_that_needs_it(home: Home, vast: Cloud) -> None:
    assert home.run("keeper", "start").returncode == 0
    vast.fault("offer_gone", times=1000)
    with Shell(home, vast):
        run = home.up(home.recipe(), "--provider", "vast", *FOUR_H100)
    home.until_finished(run, PATIENCE_S)
    assert vast.world.asked["create"] > 0, "the keeper had the key"
    home.until(lambda: files(home.places) == [])
    assert keeper.running(home.places) is not None


def test_the_plan_says_that_the_key_is_in_this_shell_alone(home: Home, vast: Cloud) -> None:
    with Shell(home, vast):
        planned = home.run("up", home.recipe(), "--provider", "vast", *FOUR_H100, "--dry-run")
    assert "the key of vast is in this shell's environment alone" in planned.stdout, planned
    assert "only until you log out or this machine restarts" in planned.stdout
    assert "gpurun auth vast" in planned.stdout
    assert files(home.places) == []


def test_where_no_folder_is_in_memory_the_plan_says_which_guard_is_missing(
    home: Home, vast: Cloud
) -> None:
    hide = "for each in /dev/shm /run/user/*; do [ ! -d $each ] || mount --bind /etc $each; done"
    recipe, words = home.recipe(), " ".join(FOUR_H100)
    with Shell(home, vast):
        planned = in_namespace(
            home, hide, f'"$GPURUN" up {recipe} --provider vast {words} --dry-run'
        )
    assert "there is no folder in memory to hand it over in" in planned.stdout, planned
    assert "the keeper is no guard of this box" in planned.stdout


def test_the_key_of_another_account_does_not_blind_the_keeper_to_a_live_box(
    home: Home, vast: Cloud
) -> None:
    with Shell(home, vast):
        run = up(home)
        before = handed.read(home.places)
    with cloud("vast", boxes=StubBoxes()) as other:
        other.fault("key_of_other_account")
        with Shell(home, other):
            words = (home.recipe(), "--provider", "vast", *FOUR_H100, "--yes", "-d")
            done = home.run("up", *words)
    assert done.returncode == 2, done
    assert f"run {run} has a box at vast account" in done.stderr
    assert handed.read(home.places) == before
