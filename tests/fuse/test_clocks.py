"""The clocks of a fuse: uptime within one boot, the wall clock measured against ours after."""

import shlex
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from gpurun import fuse
from gpurun.model import Timer
from gpurun.shell import Result
from gpurun.shell.local import LocalShell
from tests.fakecloud import FakeClock
from tests.fuse.places import (
    LABEL,
    START_S,
    Place,
    by_hand,
    restart,
    rewrite,
    set_clocks,
    wait_until,
    wall,
    with_clocks,
    write,
)


@pytest.mark.parametrize("step_s", [3600, -3600, 10**8])
def test_a_step_of_the_wall_clock_neither_fires_nor_delays(place: Place, step_s: int) -> None:
    with_clocks(place, left_s=100)
    set_clocks(place, wall_s=1_800_000_000 + step_s)
    set_clocks(place, uptime_s=START_S + 219)
    place.look_again()
    assert place.times("destroyed") == 0
    set_clocks(place, uptime_s=START_S + 220)
    wait_until(lambda: place.times("destroyed") == 1)


def test_in_another_boot_the_wall_clock_decides(place: Place) -> None:
    with_clocks(place, left_s=100)
    rewrite(place, lambda words: words.__setitem__(6, "another-boot.17"))
    set_clocks(place, uptime_s=START_S + 10_000, wall_s=1_800_000_219)
    restart(place)
    place.look_again()
    assert place.times("destroyed") == 0
    set_clocks(place, wall_s=1_800_000_220)
    wait_until(lambda: place.times("destroyed") == 1)


def test_an_uptime_that_went_back_leaves_it_to_the_wall_clock(place: Place) -> None:
    with_clocks(place, left_s=100)
    set_clocks(place, uptime_s=START_S - 900, wall_s=1_800_000_219)
    place.look_again()
    assert place.times("destroyed") == 0
    set_clocks(place, wall_s=1_800_000_220)
    wait_until(lambda: place.times("destroyed") == 1)


def test_without_an_uptime_as_on_a_mac_the_wall_clock_decides(place: Place) -> None:
    set_clocks(place, wall_s=1_800_000_000)
    text = fuse.script(
        str(place.home),
        LABEL,
        place.self_destroy,
        ":",
        uptime_command="echo",
        wall_command=f"cat {shlex.quote(str(wall(place)))}",
    )
    write(place, text)
    by_hand(place, left_s=100)
    place.look_again()
    assert place.state().holds(1)
    assert place.times("destroyed") == 0
    set_clocks(place, wall_s=1_800_000_220)
    wait_until(lambda: place.times("destroyed") == 1)


def test_a_box_whose_wall_clock_is_wrong_is_measured_against_ours(place: Place) -> None:
    with_clocks(place, left_s=100)
    # As if armed while the box was an hour ahead, and then rebooted.
    rewrite(place, lambda words: words.__setitem__(slice(6, 8), ["another-boot.17", "3600"]))
    set_clocks(place, wall_s=1_800_000_219 + 3600)
    restart(place)
    place.look_again()
    assert place.times("destroyed") == 0
    set_clocks(place, wall_s=1_800_000_220 + 3600)
    wait_until(lambda: place.times("destroyed") == 1)


def test_the_boot_key_tells_a_restarted_container_from_its_host(plain: Place) -> None:
    plain.arm(1, ends_in_s=600)
    key = (plain.home / "fuse.timer").read_text().split()[6]
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    start = Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19]
    assert key == f"{boot_id}.{start}"


def test_the_same_timer_after_a_reboot_is_measured_anew(plain: Place) -> None:
    plain.arm(1, ends_in_s=600)
    words = (plain.home / "fuse.timer").read_text().split()
    rewrite(plain, lambda words: words.__setitem__(6, "another-boot.17"))
    figures = f"1 {words[2]} {words[3]} 500 {round(time.time())}"
    arm = f"cd {shlex.quote(str(plain.home))} && sh fuse.sh arm"
    plain.shell.run(f"{arm} 1 {words[2]} 99999 500 0", timeout_s=20)  # not the same timer
    assert "another-boot.17" in (plain.home / "fuse.timer").read_text()
    plain.shell.run(f"{arm} {figures}", timeout_s=20)
    assert (plain.home / "fuse.timer").read_text().split()[6] == words[6]


def test_the_same_timer_can_be_measured_shorter_but_never_longer(plain: Place) -> None:
    plain.arm(1, ends_in_s=600)
    words = (plain.home / "fuse.timer").read_text().split()
    arm = f"cd {shlex.quote(str(plain.home))} && sh fuse.sh arm 1 {words[2]} {words[3]}"
    for left_s, then in ((9000, words[4]), (500, "500"), (550, "500")):
        plain.shell.run(f"{arm} {left_s} {round(time.time())}", timeout_s=20)
        assert (plain.home / "fuse.timer").read_text().split()[4] == then


class Sleepy(FakeClock):
    """The clock of a machine that sleeps for an hour on its way to the box, once."""

    def __init__(self, shell: LocalShell) -> None:
        super().__init__()
        self.shell, self.slept = shell, False

    def run(
        self,
        command: str,
        *,
        timeout_s: float,
        stdin: str = "",
        on_line: Callable[[str], None] | None = None,
    ) -> Result:
        if not self.slept:
            self.slept = True
            self.sleep(3600)
        return self.shell.run(command, timeout_s=timeout_s, stdin=stdin)

    def put(self, source: Path, target: str) -> None: ...

    def get(self, source: str, target: Path) -> None: ...


def test_an_hour_slept_on_the_way_to_the_box_is_not_given_to_it(plain: Place) -> None:
    clock = Sleepy(plain.shell)
    ends_at = clock.now() + timedelta(seconds=4000)
    fuse.arm(
        clock,
        str(plain.home),
        Timer(LABEL, 1, "run", ends_at, ends_at, "", 0, 0),
        clock,
        self_destroy=":",
        terminate=":",
    )
    assert (plain.home / "fuse.timer").read_text().split()[4] == "400"
