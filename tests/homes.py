"""A state directory of its own, driven through the real command; it outlives no test.

Nothing of whoever tests is in it: no account, no SSH key or agent, no setting.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from gpurun import keeper, keystore
from gpurun.clock import Deadline, SystemClock
from gpurun.locks import holder
from gpurun.places import Places
from gpurun.store import Journal
from provisioners.local import Local
from tests.boxes import make_key, public_line

if TYPE_CHECKING:
    from tests.clouds.serve import Cloud

GPURUN = Path(sys.executable).with_name("gpurun")
CALLERS = ("GPURUN_", "VAST_", "PRIME_", "XDG_", "SSH_")  # what is not taken over from them
URLS = {"vast": "VAST_URL", "prime": "PRIME_API_BASE_URL"}

RECIPE = """\
name: {name}
need:
  gpu: none
  disk_gb: 1
providers: local
budget:
  max_usd_per_hour: 10
  max_usd: 10
  setup_minutes: {setup_minutes}
  run_minutes: {run_minutes}
  grace_minutes: {grace_minutes}
setup:
  device: cpu
data:
  build: |
    {build}
  path: data
  verify:
    files:
      "*/dataset.json": 2
train:
  run: |
    {train}
  expect:
    - out/result.txt
watch:
  metrics: out/metrics.jsonl
collect:
  - out
  - logs
"""
BUILD = "mkdir -p data/train data/test; touch data/train/dataset.json data/test/dataset.json"
TRAIN = "mkdir -p out; echo trained; echo 42 > out/result.txt"
WAITS = "mkdir -p out; echo 42 > out/result.txt; while :; do sleep 0.1; done"


class Home:
    """GPURUN_HOME, a HOME, and the commands run in them."""

    def __init__(self, root: Path, usd_per_hour: str = "3.60") -> None:
        self.root = root
        self.places = Places(root / "state")
        self.config = root / "config.toml"
        self.user = root / "user"
        self.work = root / "work"
        for folder in (self.user, self.work):
            folder.mkdir(parents=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(CALLERS)}
        self.env = kept | {
            "HOME": str(self.user),
            "GPURUN_HOME": str(self.places.root),
            "GPURUN_CONFIG": str(self.config),
            "GPURUN_LOCAL_USD_PER_HOUR": usd_per_hour,
        }

    def open_account(self, cloud: "Cloud") -> None:
        """A key for an emulated cloud in the settings, and an SSH key that lets in to its boxes."""
        provider = cloud.world.provider
        keystore.store(self.config, provider, cloud.api_key)
        self.env[URLS[provider]] = cloud.url
        key = self.user / ".ssh" / "id_ed25519"
        if not key.exists():
            key.parent.mkdir(mode=0o700)
            make_key(key)
        if provider == "prime":  # at Vast each purchase brings the keys of its machine
            body = {"name": "a test's", "publicKey": public_line(key)}
            url = f"{cloud.url}/api/v1/ssh_keys/"
            httpx.post(url, json=body, headers=cloud.headers).raise_for_status()

    def recipe(
        self,
        *,
        name: str = "tiny",
        build: str = BUILD,
        train: str = TRAIN,
        setup_minutes: float = 5,
        run_minutes: float = 5,
        grace_minutes: float = 0.2,
    ) -> Path:
        path = self.work / f"{name}.yaml"
        path.write_text(
            RECIPE.format(
                name=name,
                build=build.replace("\n", "\n    "),
                train=train.replace("\n", "\n    "),
                setup_minutes=setup_minutes,
                run_minutes=run_minutes,
                grace_minutes=grace_minutes,
            )
        )
        return path

    def run(
        self, *arguments: str | Path, timeout_s: float = 90
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [GPURUN, *arguments],
            cwd=self.work,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def start(self, *arguments: str | Path) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [GPURUN, *arguments],
            cwd=self.work,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def up(self, recipe: Path, *arguments: str) -> str:
        """Start a run detached; its id."""
        done = self.run("up", recipe, "--yes", "-d", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[-1]

    def document(self, run_id: str) -> dict[str, Any]:
        done = self.run("status", run_id, "--json")
        assert done.returncode == 0, done
        found: dict[str, Any] = json.loads(done.stdout)["runs"][0]
        return found

    def journal(self) -> Journal:
        return Journal(self.places.database, SystemClock())

    def only_run(self) -> str:
        """The id of the one run of this home, once it is written."""
        self.until(lambda: self.places.database.exists() and bool(self._run_ids()), 30)
        return self._run_ids()[0]

    def last_run(self) -> str:
        """The id of the newest run whose artifacts have a folder."""
        return max((self.work / "runs").iterdir(), key=lambda folder: folder.stat().st_ctime).name

    def until(self, holds: Callable[[], bool], within_s: float = 60) -> None:
        deadline = Deadline(within_s)
        while not deadline.passed():
            with suppress(Exception):
                if holds():
                    return
        raise AssertionError(f"not within {within_s} s; logs:\n{self.logs()}")

    def until_phase(self, run_id: str, phase: str, within_s: float = 60) -> None:
        journal = self.journal()
        self.until(lambda: journal.runs.get(run_id).phase == phase, within_s)
        journal.close()

    def until_finished(self, run_id: str, within_s: float = 90) -> None:
        journal = self.journal()
        states = ("active", "still_billing")
        self.until(lambda: journal.runs.get(run_id).state not in states, within_s)
        journal.close()

    def box_processes(self) -> list[int]:
        """Every process that runs in a box of this home: it bears the home in its environment."""
        return _bearing(f"{self.places.boxes}/")

    def logs(self) -> str:
        texts = []
        for path in sorted(self.places.root.rglob("*.log")):
            if path.name != "timers.log":
                texts.append(f"--- {path.name}\n{path.read_text(errors='replace')[-4000:]}")
        return "\n".join(texts)

    def kill_keeper(self) -> None:
        """Both processes, the parent first, as `kill -9` would.

        One that was typed, `gpurun keeper run`, has no parent of ours.
        """
        pid = keeper.running(self.places)
        if pid is None:
            return
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        said = Path(f"/proc/{parent}/cmdline").read_bytes().split(b"\0")
        for each in (parent, pid) if b"gpurun.keeper" in said else (pid,):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        self.until(lambda: keeper.running(self.places) != pid, 10)

    def kill_keeper_and_drivers(self) -> None:
        """None has the time to start another again."""
        locks = (self.places.root / "runs").glob("*.lock")
        drivers = [pid for lock in locks if (pid := holder(lock))]
        _send(signal.SIGSTOP, drivers)
        try:
            self.kill_keeper()
        finally:
            _send(signal.SIGKILL, drivers)

    def close(self) -> None:
        """End what this home started: keeper, drivers, boxes, fuses; by pid."""
        with suppress(AssertionError):
            self.kill_keeper_and_drivers()
        try:
            end_processes_of(self.places.root)
        finally:
            self._end_boxes()

    def _end_boxes(self) -> None:
        cloud = Local(self.places.root, Decimal(0), SystemClock())
        if self.places.boxes.exists():
            for box in cloud.instances():
                cloud.destroy(box.id)
        for pid_file in (self.places.root / "fuses").glob("*/fuse.pid"):
            with suppress(OSError, ValueError, IndexError):
                pid = int(pid_file.read_text().split()[0])
                if b"fuse.sh" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)

    def _run_ids(self) -> list[str]:
        journal = self.journal()
        try:
            return [run.id for run in journal.runs.unfinished()]
        finally:
            journal.close()


def end_processes_of(state: Path) -> None:
    """Those with this state directory, until none is left: a driver that waits for the lock of
    the one just killed would start the keeper again."""
    deadline = Deadline(10)
    while left := _bearing(f"GPURUN_HOME={state}\0"):
        assert not deadline.passed(), f"{left} live on"
        _send(signal.SIGKILL, left)


def _bearing(mark: str) -> list[int]:
    """The processes with these words in their environment."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark.encode() in environ.read_bytes():
                found.append(int(environ.parent.name))
    return found


def _send(number: signal.Signals, pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
