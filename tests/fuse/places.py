"""Places for a fuse to be: a box under each sh at hand, and clocks that only a test moves."""

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from gpurun import fuse
from gpurun.clock import SystemClock
from gpurun.fuse import FuseState
from gpurun.model import Timer
from gpurun.shell import Result
from gpurun.shell.local import LocalShell

CLOCK = SystemClock()
LABEL = "gpurun-owner1-run00001-nonce1"
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
