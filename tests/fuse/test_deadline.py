"""The fuse, as real processes under every sh at hand: it fires at F, once, and for nothing else."""

import os
import shlex
import signal
import subprocess
import time
from datetime import timedelta

from gpurun import fuse
from tests.fuse.places import (
    LABEL,
    START_S,
    Place,
    by_hand,
    set_clocks,
    timer,
    wait_until,
    with_clocks,
    write,
)


def test_it_ends_the_box_within_two_seconds_of_its_time_and_then_rests(place: Place) -> None:
    armed_s = time.monotonic()
    state = place.arm(1, ends_in_s=2)
    assert state is not None
    assert state.holds(1)
    wait_until(lambda: place.times("destroyed") > 0)
    assert abs(time.monotonic() - armed_s - 3) < 2
    wait_until(lambda: not place.pids())
    assert place.state().fired
    assert not place.state().alive
    assert place.times("destroyed") == place.times("terminated") == 1


def test_training_is_stopped_before_and_only_once(place: Place) -> None:
    place.arm(1, ends_in_s=60, grace_s=70, term_delay_s=16)  # T was 10 s ago
    place.look_again()
    assert place.times("terminated") == 0
    wait_until(lambda: place.times("terminated") == 1)
    place.look_again()
    assert place.times("terminated") == 1
    assert place.times("destroyed") == 0


def test_a_renewal_moves_the_deadline_and_an_old_one_does_not(place: Place) -> None:
    with_clocks(place, left_s=100)
    by_hand(place, left_s=200, seq=2)
    for not_greater in (1, 2):
        by_hand(place, left_s=0, seq=not_greater)
    set_clocks(place, uptime_s=START_S + 319)
    place.look_again()
    assert place.state().holds(2)
    assert place.times("destroyed") == 0
    by_hand(place, left_s=-120, seq=3)  # shortened
    wait_until(lambda: place.times("destroyed") == 1)
    assert place.state().seq == 3


def test_a_seq_that_is_not_greater_is_seen_by_who_sends_it(plain: Place) -> None:
    first = plain.arm(2, ends_in_s=600)
    assert first is not None
    for not_greater in (1, 2):
        state = plain.arm(not_greater, ends_in_s=0)
        assert state is not None
        assert state.ends_at == first.ends_at
        assert state.holds(2)


def test_what_it_holds_is_read_back_to_the_second(plain: Place) -> None:
    assert fuse.read_back(plain.shell, str(plain.home)) is None
    armed = timer(7, 600, 60)
    plain.arm(7, ends_in_s=600)
    state = plain.state()
    assert abs(state.ends_at - armed.ends_at) <= timedelta(seconds=1)
    assert (state.seq, state.alive, state.fired, state.disarmed) == (7, True, False, False)
    assert 0 <= state.beat_age_s <= 5
    assert not state.holds(6)
    assert not state.holds(8)


def test_a_refused_end_is_asked_for_again_until_it_is_granted(place: Place) -> None:
    (place.root / "refuses").touch()
    place.arm(1, ends_in_s=-1)
    wait_until(lambda: place.times("destroyed") == 1)
    (place.root / "refuses").unlink()
    wait_until(lambda: not place.pids())
    assert place.times("destroyed") == 2
    assert place.times("terminated") == 1


def test_refusals_are_answered_with_more_patience_each_time(plain: Place) -> None:
    (plain.root / "refuses").touch()
    plain.arm(1, ends_in_s=-1)
    asked_s = []
    for nth in (1, 2, 3):
        wait_until(lambda: plain.times("destroyed") == nth)  # noqa: B023
        asked_s.append(time.monotonic())
    assert asked_s[1] - asked_s[0] > 4
    assert asked_s[2] - asked_s[1] > 9
    assert plain.state().alive


def test_a_renewal_between_two_refusals_calls_it_off(place: Place) -> None:
    (place.root / "refuses").touch()
    with_clocks(place, left_s=-120)
    wait_until(lambda: place.times("destroyed") == 1)
    by_hand(place, left_s=600, seq=2)
    assert place.state().holds(2)
    assert not place.state().fired
    for _ in range(3):
        place.look_again()
    assert place.times("destroyed") == 1


def test_an_end_that_hangs_is_cut_off_whole_and_tried_again(place: Place) -> None:
    hangs = place.root / "hangs"
    text = f"echo $$ >> {shlex.quote(str(hangs))}; sh -c 'sleep 999; :'"
    script = fuse.script(str(place.home), LABEL, text, ":", margin_s=0)
    write(place, script.replace('60 "$self', '1 "$self'))
    by_hand(place, left_s=0)
    wait_until(lambda: place.times("hangs") == 2)
    first, second = (int(pid) for pid in hangs.read_text().split())
    assert not group_of(first)
    os.kill(place.pids()[0], signal.SIGKILL)
    os.killpg(second, signal.SIGKILL)


def group_of(pid: int) -> list[str]:
    told = subprocess.run(["pgrep", "-g", str(pid)], capture_output=True, text=True)
    return told.stdout.split()
