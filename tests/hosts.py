"""Whole runs over SSH: a state directory whose settings list test boxes as hosts."""

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from gpurun.clock import Deadline
from tests.boxes import Box, Proxy
from tests.homes import Home

MARKER = "var/tmp/gpurun"
USD_PER_HOUR = "3.60"

# A recipe that tells how often its parts were done.
BUILDS = "mkdir -p data/train data/test; echo x >> data/builds\n"
BUILDS += "touch data/train/dataset.json data/test/dataset.json; sleep 0.5"
LAUNCHES = "mkdir -p out; echo x >> out/launches; cp data/builds out; sleep 1\n"
LAUNCHES += "echo 42 > out/result.txt"


class Hosts(Home):
    """GPURUN_HOME and the commands run in it, for runs on boxes."""

    def __init__(self, root: Path, *machines: Box) -> None:
        super().__init__(root)
        self.list_hosts([entry(machine) for machine in machines])

    def list_hosts(self, entries: Sequence[str]) -> None:
        """These `ssh_hosts` and no others, as `entry` writes them."""
        self.config.write_text("\n".join(entries))
        self.config.chmod(0o600)

    def go(
        self, recipe: Path, *arguments: str, timeout_s: float = 150
    ) -> "subprocess.CompletedProcess[str]":
        """A run on the listed hosts, followed to its end."""
        words = ("up", recipe, "--provider", "ssh", "--yes", "--json", *arguments)
        return self.run(*words, timeout_s=timeout_s)

    def begin(self, recipe: Path, *arguments: str) -> str:
        """A run on the listed hosts, in the background; its id."""
        return self.up(recipe, "--provider", "ssh", *arguments)

    def phase(self, run: str) -> str:
        """The phase that the run is in; cheap enough to be asked a hundred times a second."""
        return self._asked(run, "phase")

    def state(self, run: str) -> str:
        return self._asked(run, "state")

    def reason(self, run: str) -> str:
        return self._asked(run, "reason")

    def _asked(self, run: str, column: str) -> str:
        with closing(sqlite3.connect(f"file:{self.places.database}?mode=ro", uri=True)) as journal:
            [row] = journal.execute(f"select {column} from runs where id = ?", (run,))
        return str(row[0] or "")

    def until_phase(self, run_id: str, phase: str, within_s: float = 60) -> None:
        """As soon as it is in that phase: some last for a tenth of a second."""
        deadline = Deadline(within_s, poll_s=0.005)
        while self.phase(run_id) != phase:
            assert not deadline.passed(), f"never in {phase}:\n{self.logs()}"

    def finished(self, run: str, within_s: float = 120) -> dict[str, Any]:
        """The run's last document."""
        deadline = Deadline(within_s, poll_s=0.2)
        while self.state(run) in ("active", "still_billing"):
            assert not deadline.passed(), f"not over within {within_s} s:\n{self.logs()}"
        return self.document(run)

    def fetched(self, run: str, path: str) -> str:
        return (self.work / "runs" / run / path).read_text()

    def once_only(self, run: str) -> bool:
        """Whether each part of the recipe of BUILDS and LAUNCHES was done once."""
        done = [self.fetched(run, f"out/{file}") for file in ("builds", "launches")]
        return done == ["x\n", "x\n"] and self.rentals() == 1

    def rentals(self) -> int:
        """How many times the journal says that a host was to be claimed."""
        if not self.places.database.exists():
            return 0
        with closing(sqlite3.connect(self.places.database)) as journal:
            [row] = journal.execute("select count(*) from instances where sent_at is not null")
        return int(row[0])

    def processes(self) -> list[int]:
        """Keeper, drivers, followers: every process that bears this state directory."""
        mark = b"GPURUN_HOME=" + os.fsencode(self.places.root)
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in environ.read_bytes().split(b"\0"):
                    found.append(int(environ.parent.name))
        return found

    def signal_all(self, number: signal.Signals) -> None:
        """What a closed lid, or a crash of this machine, does to every process of ours."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self) -> None:
        """A keeper's parent starts another one: until none is left."""
        while self.processes():
            self.signal_all(signal.SIGKILL)


def entry(machine: Box, *, via: Proxy | None = None, **settings: str) -> str:
    """A host of the settings: the box itself, or by way of a proxy in between."""
    reached = via or machine
    fields = {
        "host": reached.host,
        "user": machine.user,
        "key": str(machine.key),
        "usd_per_hour": USD_PER_HOUR,
    } | settings
    rows = "".join(f"{name} = {json.dumps(text)}\n" for name, text in fields.items())
    return f"[[ssh_hosts]]\n{rows}port = {reached.port}\n"


def run_root(machine: Box) -> Path:
    """The directory of the one run on a box, seen from outside."""
    [root] = (machine.root / "workspace").glob("gpurun-*")
    return root


def training(machine: Box, text: str) -> list[int]:
    """The processes of a box that run this text, by their numbers here."""
    found = []
    for pid in machine.pids():
        with suppress(OSError):
            if text.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def left_on(machine: Box) -> list[str]:
    """What a run has left on a box: marker, directories, processes; kept artifacts are no leaving.

    What still removes a directory in the background counts until it is done.
    """
    home = furnished(machine)
    left = [str(path) for path in (machine.root / MARKER, *home) if path.exists()]
    for pid in machine.pids():
        with suppress(OSError):
            if b"GPURUN_LABEL=" in Path(f"/proc/{pid}/environ").read_bytes():
                left.append(Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", " "))
    shm = machine.root / "dev/shm"
    return left + [str(path) for path in shm.glob("gpurun-*")]


def furnished(machine: Box) -> list[Path]:
    workspace = machine.root / "workspace"
    found = [*workspace.glob("gpurun-*"), *workspace.glob(".trash-*")]
    return [*found, *machine.home.glob("gpurun*")]
