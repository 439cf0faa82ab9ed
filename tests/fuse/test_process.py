"""The process of a fuse: one, that outlives all but its disarming."""

import ctypes
import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpurun import fuse
from gpurun.fuse import FuseState
from gpurun.shell import Result
from tests.fuse.places import (
    Place,
    Says,
    wait_until,
)


def test_two_arms_at_once_leave_one_process(place: Place) -> None:
    place.home.mkdir()
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: place.arm(1, ends_in_s=600), range(6)))
    wait_until(lambda: len(place.pids()) == 1)
    place.look_again()
    assert place.state().holds(1)


def test_a_killed_fuse_is_seen_as_dead_and_started_by_the_next_arm(place: Place) -> None:
    place.arm(1, ends_in_s=600)
    [pid] = place.pids()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not place.pids())
    assert not place.state().alive
    state = place.arm(1, ends_in_s=600)
    assert state is not None
    assert state.holds(1)
    assert len(place.pids()) == 1


def test_a_fuse_whose_files_were_removed_gives_way_to_the_next(place: Place) -> None:
    """It could be told of no later timer any more, and would end the box by the old one."""
    place.arm(1, ends_in_s=600)
    [old] = place.pids()
    shutil.rmtree(place.home)
    state = place.arm(1, ends_in_s=600)
    assert state is not None and state.holds(1)
    wait_until(lambda: not Path(f"/proc/{old}").exists() or place.pids() == [old], 120)
    assert len(place.pids()) == 1


def test_a_zombie_whose_parent_never_looks_is_not_taken_for_a_guard(plain: Place) -> None:
    ctypes.CDLL(None).prctl(
        36, 1
    )  # PR_SET_CHILD_SUBREAPER: orphans become ours, and we do not wait
    try:
        plain.arm(1, ends_in_s=600)
        [pid] = plain.pids()
        os.kill(pid, signal.SIGKILL)
        stat = Path(f"/proc/{pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
        assert not plain.state().alive
        state = plain.arm(1, ends_in_s=600)
        assert state is not None
        assert state.holds(1)
        os.waitpid(pid, 0)
    finally:
        ctypes.CDLL(None).prctl(36, 0)


def test_a_stopped_fuse_is_no_guard(plain: Place) -> None:
    plain.arm(1, ends_in_s=600)
    state = plain.state()
    aged = FuseState(state.seq, state.ends_at, state.alive, fuse.BEAT_WITHIN_S + 1, state.fired)
    assert not aged.holds(1)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_only_disarming_ends_it_and_no_polite_signal_does(place: Place, sent: int) -> None:
    place.arm(1, ends_in_s=600)
    [pid] = place.pids()
    os.kill(pid, sent)
    place.look_again()
    assert place.pids() == [pid]


def test_it_outlives_the_session_that_armed_it(place: Place) -> None:
    place.arm(1, ends_in_s=600)
    fuse.disarm(place.shell, str(place.home))
    ends_s = round(time.time()) + 1
    arm = f"sh fuse.sh arm 2 {ends_s} {ends_s} 1 {ends_s - 1}; echo; sleep 1000"
    session = subprocess.Popen(
        ["sh", "-c", arm],
        cwd=place.home,
        env={"PATH": "/nonexistent", **{"PATH": place_path(place)}},
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    assert session.stdout is not None
    assert session.stdout.readline().startswith(b"gpurun-fuse 2 ")
    for sent in (signal.SIGHUP, signal.SIGKILL):
        os.killpg(session.pid, sent)
    session.communicate()
    wait_until(lambda: place.times("destroyed") == 1)


def place_path(place: Place) -> str:
    return place.shell.run("echo $PATH", timeout_s=5).output.strip()


def test_a_disarmed_fuse_ends_and_never_fires(place: Place) -> None:
    place.arm(1, ends_in_s=600)
    assert fuse.disarm(place.shell, str(place.home))
    assert place.pids() == []
    assert place.state().disarmed
    assert not place.state().holds(1)
    assert fuse.disarm(place.shell, str(place.home))
    again = place.arm(1, ends_in_s=0)
    assert again is not None
    assert not again.holds(1)
    assert place.pids() == []
    assert place.times("destroyed") == 0


def test_after_disarming_a_greater_seq_arms_it_again(plain: Place) -> None:
    plain.arm(1, ends_in_s=600)
    fuse.disarm(plain.shell, str(plain.home))
    state = plain.arm(2, ends_in_s=600)
    assert state is not None
    assert state.holds(2)


def test_a_firing_fuse_that_is_refused_can_be_disarmed(place: Place) -> None:
    (place.root / "refuses").touch()
    place.arm(1, ends_in_s=-1)
    wait_until(lambda: place.times("destroyed") >= 1)
    wait_until(lambda: fuse.disarm(place.shell, str(place.home)))
    assert place.pids() == []


def test_where_there_is_no_fuse_nothing_is_to_be_disarmed(plain: Place) -> None:
    assert fuse.disarm(plain.shell, str(plain.home))


def test_disarming_over_a_lost_connection_is_not_done() -> None:
    assert not fuse.disarm(Says(Result(-1, "")), "home")
    assert not fuse.disarm(Says(Result(0, "gpurun-fuse 1 2 3 armed 1")), "home")
