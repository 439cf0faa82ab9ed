"""What the tests of provider `local` share."""

import json
import os
import re
import select
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

from gpurun.clock import SystemClock
from gpurun.shell.local import LocalShell
from provisioners.local import Local, processes, strategies
from provisioners.local.containment import BEST_EFFORT, STRATEGIES, launch
from tests.contract import LABEL, order

CLOCK = SystemClock()
RATE = Decimal("1.25")
NOBODY = 65534
NAP = f"/bin/sleep 7{os.getpid():07}"  # of this process alone: tests run side by side


def works(strategy: str) -> bool:
    try:
        launch([strategy], "gpurun-probe").abort()
    except strategies.CannotContain:
        return False
    return True


WORKING = [name for name in STRATEGIES if works(name)]
SURE = [name for name in WORKING if name != BEST_EFFORT]


def opened(state_dir: Path, containment: list[str]) -> Iterator[Local]:
    yield Local(state_dir, RATE, CLOCK, containment)
    used = state_dir / "boxes" / ".used"
    for label in used.iterdir() if used.exists() else ():  # a test may have hidden some
        strategies.Marked().end_all(label.name, CLOCK)


def end_boxes_of_dead_tests() -> None:
    """A suite that was killed could not clean up: the next one does."""
    wanted = re.compile(rb"%s=(gpurun-aaaaaa-test(\d+)-\w+)" % strategies.MARK.encode())
    for process in processes.table():
        with suppress(OSError):
            environ = Path(f"/proc/{process.pid}/environ").read_bytes()
            for label, tester in wanted.findall(environ):
                if processes.find(int(tester)) is None:
                    strategies.Marked().end_all(label.decode(), CLOCK)


def rent(cloud: Local, label: str = LABEL) -> LocalShell:
    return cloud.shell(cloud.create(order(cloud, label)).instance_id)


def record(state_dir: Path) -> Path:
    return state_dir / "boxes" / LABEL / "box.json"


def edit(path: Path, **changes: object) -> dict[str, object]:
    before = json.loads(path.read_text())
    path.write_text(json.dumps(before | changes))
    return before


def lives(pid: int) -> bool:
    process = processes.find(pid)
    return process is not None and not process.dead


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come true"
        time.sleep(0.01)


def outer_pids(words: str) -> list[int]:
    """The processes of this machine whose command line is exactly this."""
    found = []
    for process in processes.table():
        try:
            said = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        except OSError:
            continue
        if said.rstrip(b"\0").split(b"\0") == words.encode().split() and lives(process.pid):
            found.append(process.pid)
    return found


def fill(shell: LocalShell, collect: str) -> Path:
    shell.run(
        "mkdir -p checkpoints/a logs other; echo 1 > checkpoints/a/step_1; echo 2 > checkpoints/b;"
        f" echo l > logs/log; echo o > other/o; printf '{collect}' > .gpurun/collect.txt",
        timeout_s=10,
    )
    return shell.root


def saved(cloud: Local) -> list[str]:
    home = cloud.salvage(LABEL)
    return sorted(str(p.relative_to(home)) for p in home.rglob("*") if not p.is_dir())


def as_nobody(check: Callable[[Path], None]) -> None:
    """Run a check as a user without privilege, in a directory of its own."""
    if os.getuid() != 0:  # then the whole suite runs as one
        with tempfile.TemporaryDirectory() as directory:
            check(Path(directory))
        return
    directory = Path(tempfile.mkdtemp(prefix="gpurun-test-"))
    try:
        directory.chmod(0o755)
        os.chown(directory, NOBODY, NOBODY)
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            try:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                os.environ["HOME"] = str(directory)
                check(directory / "state")
                os._exit(0)
            except BaseException as error:
                os.write(write, repr(error).encode()[:4096])
            finally:
                os._exit(1)
        os.close(write)
        heard = b""
        while select.select([read], [], [], 60)[0] and (data := os.read(read, 4096)):
            heard += data
        os.close(read)
        assert os.waitpid(child, 0)[1] == 0, heard.decode()
    finally:
        shutil.rmtree(directory)
