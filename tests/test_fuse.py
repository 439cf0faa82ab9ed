"""The fuse, as real processes under every sh at hand: it fires at F, once, and for nothing else."""

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from gpurun import fuse
from gpurun.clock import SystemClock
from gpurun.fuse import FuseState
from gpurun.model import Timer
from gpurun.shell import LocalShell, Result
from tests.fakecloud import FakeClock

CLOCK = SystemClock()
LABEL = "gpurun-owner1-run00001-nonce1"
ODD = 'it\'s $(touch pwned) "`touch pwned`" ; & \\ ü\n@label@'
SHELLS = [name for name in ("sh", "bash", "busybox") if shutil.which(name)]
START_S = 1000


@dataclass(frozen=True)
class Place:
    """A box whose fuse lives in `home`; what is done to the box leaves a line in a file."""

    root: Path
    home: Path
    shell: LocalShell
    label: str = LABEL

    @property
    def self_destroy(self) -> str:
        root = shlex.quote(str(self.root))
        return f"echo >> {root}/destroyed; [ ! -e {root}/refuses ]"

    @property
    def terminate(self) -> str:
        return f"echo >> {shlex.quote(str(self.root))}/terminated"

    def arm(self, seq: int, ends_in_s: float, grace_s: float = 1, **more: int) -> FuseState | None:
        return fuse.arm(
            self.shell,
            str(self.home),
            timer(seq, ends_in_s, grace_s, self.label),
            CLOCK,
            self_destroy=self.self_destroy,
            terminate=self.terminate,
            **{"margin_s": 1, "term_delay_s": 0, **more},
        )

    def state(self) -> FuseState:
        state = fuse.read_back(self.shell, str(self.home))
        assert state is not None
        return state

    def pids(self) -> list[int]:
        """Every live process of this home's fuse."""
        parents = {}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if words[-3:-1] == [b"fuse.sh", b"run"]:
                    stat = (process / "stat").read_text().rpartition(")")[2].split()
                    if (process / "cwd").readlink() == self.home:
                        parents[int(process.name)] = int(stat[1])
        # Its forks bear its name until they become what they were forked for.
        return [pid for pid, parent in parents.items() if parent not in parents]

    def times(self, what: str) -> int:
        path = self.root / what
        return path.read_text().count("\n") if path.exists() else 0

    def look_again(self) -> None:
        """Wake it, twice, and wait until it has looked at its file and its clocks."""
        beat = self.home / "fuse.beat"
        for _ in range(2):
            before = beat.stat().st_mtime_ns
            for pid in self.pids():
                os.kill(pid, signal.SIGUSR1)
            wait_until(lambda: beat.stat().st_mtime_ns > before or not self.pids())  # noqa: B023


@pytest.fixture(params=SHELLS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield from place_with(request.param, tmp_path)


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Place]:
    """For what no interpreter can change."""
    yield from place_with("sh", tmp_path)


def place_with(interpreter: str, tmp_path: Path) -> Iterator[Place]:
    path = os.defpath
    if interpreter != "sh":
        tools = tmp_path / "tools"
        tools.mkdir()
        found = shutil.which(interpreter)
        assert found is not None
        (tools / "sh").symlink_to(found)
        path = f"{tools}:{path}"
        if interpreter == "busybox":  # nothing but it
            subprocess.run([found, "--install", "-s", tools], check=True)
            path = str(tools)
    root = tmp_path / "box"
    root.mkdir()
    made = Place(root, root / "fuse home", LocalShell(root, env={"PATH": path}))
    yield made
    for pid in made.pids():
        os.kill(pid, signal.SIGKILL)


def timer(seq: int, ends_in_s: float, grace_s: float, label: str = LABEL) -> Timer:
    ends_at = CLOCK.now() + timedelta(seconds=ends_in_s)
    fires_at = ends_at - timedelta(seconds=grace_s)
    return Timer(label, seq, "run", fires_at, ends_at, CLOCK.boot_id, 0, 0)


def wait_until(happened: Callable[[], bool], within_s: float = 15) -> None:
    until_s = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < until_s, "it did not happen in time"
        time.sleep(0.02)


# The deadline


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


# The clocks


def write(place: Place, text: str) -> None:
    place.home.mkdir(exist_ok=True)
    (place.home / "fuse.sh").write_text(text)


def by_hand(place: Place, left_s: int, seq: int = 1) -> None:
    """Arm as `fuse.arm` does, but with the script and the clock of the test."""
    now_s = int(wall(place).read_text()) if wall(place).exists() else round(time.time())
    figures = f"{seq} {now_s + left_s - 1} {now_s + left_s} {left_s} {now_s}"
    told = place.shell.run(
        f"cd {shlex.quote(str(place.home))} && sh fuse.sh arm {figures}", timeout_s=20
    )
    assert told.ok, told.output


def with_clocks(place: Place, left_s: int) -> None:
    """Armed on clocks that only the test moves."""
    set_clocks(place, uptime_s=START_S, wall_s=1_800_000_000)
    text = fuse.script(
        str(place.home),
        LABEL,
        place.self_destroy,
        place.terminate,
        margin_s=120,
        uptime_command=f"cat {shlex.quote(str(uptime(place)))}",
        wall_command=f"cat {shlex.quote(str(wall(place)))}",
    )
    write(place, text)
    by_hand(place, left_s)


def uptime(place: Place) -> Path:
    return place.root / "uptime"


def wall(place: Place) -> Path:
    return place.root / "wall"


def set_clocks(place: Place, uptime_s: int | None = None, wall_s: int | None = None) -> None:
    for path, value in ((uptime(place), uptime_s), (wall(place), wall_s)):
        if value is not None:
            path.with_suffix(".new").write_text(f"{value}\n")
            path.with_suffix(".new").replace(path)


def rewrite(place: Place, change: Callable[[list[str]], None]) -> None:
    path = place.home / "fuse.timer"
    words = path.read_text().split()
    change(words)
    path.with_suffix(".new").write_text(" ".join(words) + "\n")
    path.with_suffix(".new").replace(path)


def restart(place: Place) -> None:
    [pid] = place.pids()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not place.pids())
    place.shell.run(f"cd {shlex.quote(str(place.home))} && sh fuse.sh start", timeout_s=20)
    wait_until(lambda: place.state().alive)


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


# The process


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


# What can be wrong with its files


def test_odd_characters_in_label_and_paths_are_only_characters(tmp_path: Path) -> None:
    for place in place_with("sh", tmp_path):
        odd = Place(place.root, place.root / ODD, place.shell, label=ODD)
        state = odd.arm(1, ends_in_s=0)
        assert state is not None
        assert state.seq == 1
        wait_until(lambda: odd.times("destroyed") == 1)  # noqa: B023
        assert not list(tmp_path.rglob("pwned"))


def test_a_deleted_or_garbled_file_disarms_nothing(place: Place) -> None:
    place.arm(5, ends_in_s=4)
    for garbage in ("", "\n", "9 x y z\n", "9 " + LABEL + " 1 2\n", f"9 {LABEL} 1 2 3 x k 0\n"):
        (place.home / "fuse.timer").write_text(garbage)
        place.look_again()
        assert place.state().holds(5)
    (place.home / "fuse.timer").unlink()
    place.look_again()
    assert place.state().seq == 5
    wait_until(lambda: place.times("destroyed") == 1)


def test_an_older_line_in_the_file_is_put_right(place: Place) -> None:
    place.arm(5, ends_in_s=600)
    held = (place.home / "fuse.timer").read_text()
    rewrite(place, lambda words: words.__setitem__(0, "4"))
    place.look_again()
    assert (place.home / "fuse.timer").read_text() == held


def test_a_garbled_file_does_not_refuse_the_next_timer(plain: Place) -> None:
    plain.home.mkdir()
    (plain.home / "fuse.timer").write_text("\x00\x00 garbage")
    state = plain.arm(1, ends_in_s=600)
    assert state is not None
    assert state.holds(1)


def test_a_home_that_holds_the_fuse_of_another_label_is_left_alone(plain: Place) -> None:
    plain.arm(1, ends_in_s=600)
    other = Place(plain.root, plain.home, plain.shell, label="gpurun-another")
    before = (plain.home / "fuse.sh").read_text()
    assert other.arm(2, ends_in_s=0) is None
    assert (plain.home / "fuse.sh").read_text() == before
    assert plain.state().holds(1)


@dataclass(frozen=True)
class Cut:
    """A shell whose connection breaks in the middle of what it is given to read."""

    shell: LocalShell

    def run(
        self,
        command: str,
        *,
        timeout_s: float,
        stdin: str = "",
        on_line: Callable[[str], None] | None = None,
    ) -> Result:
        return self.shell.run(command, timeout_s=timeout_s, stdin=stdin[: len(stdin) // 2])

    def put(self, source: Path, target: str) -> None: ...

    def get(self, source: str, target: Path) -> None: ...


def test_half_a_script_is_never_run(plain: Place) -> None:
    def arm_cut(seq: int) -> FuseState | None:
        return fuse.arm(
            Cut(plain.shell),
            str(plain.home),
            timer(seq, 600, 60),
            CLOCK,
            self_destroy=plain.self_destroy,
            terminate=":",
        )

    assert arm_cut(1) is None
    assert list(plain.home.iterdir()) == []
    plain.arm(1, ends_in_s=600)
    state = arm_cut(2)  # by the whole script that is there
    assert state is not None
    assert state.holds(2)


@dataclass(frozen=True)
class Says:
    """A box that answers what it likes."""

    result: Result

    def run(
        self,
        command: str,
        *,
        timeout_s: float,
        stdin: str = "",
        on_line: Callable[[str], None] | None = None,
    ) -> Result:
        return self.result

    def put(self, source: Path, target: str) -> None: ...

    def get(self, source: str, target: Path) -> None: ...


@pytest.mark.parametrize(
    "output",
    [
        "",
        "no such file",
        "gpurun-fuse",
        "gpurun-fuse 1 2 3",
        "gpurun-fuse x 2 3 armed 1",
        "gpurun-fuse 1 2 3 armed 1 7",
        f"gpurun-fuse 1 {'9' * 30} 3 armed 1",
    ],
)
def test_an_answer_that_is_not_understood_is_no_guard(output: str) -> None:
    assert fuse.read_back(Says(Result(0, output)), "home") is None


# Disarming


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
