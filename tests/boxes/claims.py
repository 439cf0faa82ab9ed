"""Who owns which test box: a number, a folder, a cgroup and a link for each, and their end.

A claim is a folder `<STATE>/<index>` whose `owner` file names the process that made it, with its
start time.  From the index follow the box's name, link, addresses and cgroup, so whatever a killed
test process left behind can be found and removed without touching what is not ours.
"""

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.boxes import nat

STATE = Path("/run/gpurun-test-boxes")
NETWORK = "10.77.0.0/18"
MOST = 4096  # boxes at one time: four addresses each


@dataclass(frozen=True, slots=True)
class Claim:
    """One box's number and what is called after it."""

    index: int

    @property
    def name(self) -> str:
        return f"gpurun-box{self.index}"

    @property
    def folder(self) -> Path:
        return STATE / str(self.index)

    @property
    def cgroup(self) -> Path:
        return cgroup_root() / self.name

    @property
    def network(self) -> str:
        return f"{self._address(0)}/30"

    @property
    def gateway(self) -> str:
        """The host's address on the box's link."""
        return self._address(1)

    @property
    def address(self) -> str:
        return self._address(2)

    def _address(self, host: int) -> str:
        number = self.index * 4 + host
        return f"10.77.{number // 256}.{number % 256}"


def claim() -> Claim:
    """A box number that no living process has; what dead ones left is removed first.

    Numbers go round, so that none is taken again while somebody still looks for its last box.
    """
    with _locked():
        _sweep()
        taken = {claim.index for claim in _claims()}
        last = STATE / "last"
        begin = int(last.read_text()) + 1 if last.exists() else 0
        made = next(Claim(n % MOST) for n in range(begin, begin + MOST) if n % MOST not in taken)
        last.write_text(str(made.index))
        made.folder.mkdir(mode=0o700)
        (made.folder / "owner").write_text(f"{os.getpid()} {start_ticks(os.getpid())}")
    return made


def end(claim: Claim) -> None:
    """End every process of the box, and its link; its folder stays.  Twice is fine."""
    kill(claim.cgroup)
    subprocess.run(["ip", "link", "delete", claim.name], capture_output=True)
    for folder in sorted(claim.cgroup.glob("**/"), reverse=True):
        _remove_cgroup(folder)


def release(claim: Claim) -> None:
    """End the box, forget it, and leave its number to others."""
    end(claim)
    with _locked():
        _forget(claim)


def sweep() -> list[str]:
    """Remove the boxes of test processes that are dead; return their names."""
    if os.geteuid() != 0 or not STATE.is_dir():
        return []
    with _locked():
        return _sweep()


@contextmanager
def internet(claim: Claim) -> Iterator[None]:
    """Let the box reach package registries, while it is open."""
    with _locked():
        nat.open_to(STATE, claim.network)
    try:
        yield
    finally:
        with _locked():
            nat.close(STATE, claim.network)


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if there is none or it is dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def kill(cgroup: Path) -> None:
    """Kill every process in the cgroup and below, frozen ones too, and wait until they are gone."""
    if not cgroup.exists():
        return
    (cgroup / "cgroup.kill").write_text("1")
    while "populated 1" in (cgroup / "cgroup.events").read_text():
        time.sleep(0.002)


@cache
def cgroup_root() -> Path:
    """Where cgroup v2 is mounted: alone, or beside version 1."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if right.startswith("cgroup2 "):
            return Path(left.split()[4])
    raise RuntimeError("test boxes need cgroup v2: mount -t cgroup2 none /sys/fs/cgroup/unified")


def _sweep() -> list[str]:
    stale = [claim for claim in _claims() if not _owner_lives(claim)]
    for claim in stale:
        end(claim)
        _forget(claim)
    for network in nat.opened(STATE) - {claim.network for claim in _claims()}:
        nat.close(STATE, network)
    return [claim.name for claim in stale]


def _forget(claim: Claim) -> None:
    nat.close(STATE, claim.network)
    shutil.rmtree(claim.folder, ignore_errors=True)


def _remove_cgroup(folder: Path) -> None:
    """Remove an empty cgroup; the kernel may need a moment after its last process."""
    for _ in range(500):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.002)
        else:
            return


def _claims() -> list[Claim]:
    return [Claim(int(folder.name)) for folder in STATE.iterdir() if folder.name.isdigit()]


def _owner_lives(claim: Claim) -> bool:
    try:
        pid, ticks = (claim.folder / "owner").read_text().split()
    except (FileNotFoundError, ValueError):
        return False
    return start_ticks(int(pid)) == int(ticks)


@contextmanager
def _locked() -> Iterator[None]:
    STATE.mkdir(mode=0o700, exist_ok=True)
    with (STATE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
