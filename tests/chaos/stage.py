"""Plays one schedule: a home, its provider, `up`, the deeds; and waits until all is over."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

from gpurun import keeper
from gpurun.clock import SystemClock
from gpurun.locks import holder
from gpurun.model import Need, Offer, Order
from provisioners.local import Local
from tests.chaos import inside
from tests.chaos.inside import boot_s, locked
from tests.chaos.meters import CloudMeter, LocalMeter, Meter, Watcher
from tests.chaos.schedule import Deed, Schedule
from tests.cloudruns.scene import FOUR_H100
from tests.clouds.serve import Cloud, cloud
from tests.hosts import Hosts

ROOT = Path(__file__).parents[2]
LAUNCHED = "mkdir -p out; touch out/launched; echo 42 > out/result.txt"
TRAININGS = {
    "ends": f"{LAUNCHED}; sleep 1",
    "waits": f"{LAUNCHED}; while :; do sleep 0.1; done",
    "ignores": f"trap '' TERM; {LAUNCHED}; while :; do sleep 0.1; done",
    "fails": f"{LAUNCHED}; sleep 0.5; exit 3",
}
LIMIT_S = {"local": 170.0, "vast": 420.0, "prime": 900.0}
STOPPED_WITHIN_S = 5.0
OVER = ("gone", "refused", "expired", "ghost")
FOREIGN = "gpurun-zzzzzz-aaaaaaaa-bbbbbb"  # as if by somebody else's gpurun
USD_PER_HOUR = "3.60"
ENDS_OUTSIDE = ("done", "failed", "killed", "deadline")


@dataclass(frozen=True, slots=True)
class Away:
    """From when to when nothing of ours could act, or nothing was answered; on the boot clock.

    What was killed is away until the next command is over.
    """

    since_s: float
    until_s: float


@dataclass(slots=True)
class Played:
    """What is left of a schedule for its judge."""

    folder: Path
    watcher: Watcher
    home: Hosts
    aways: list[Away] = field(default_factory=list)
    over: bool = False
    now_s: float = 0.0  # when it was looked at last, on the boot clock
    seconds: float = 0.0
    up_code: int | None = None  # its exit code; negative: it was killed
    said: str = ""  # by the commands


class Stage:
    """One home at one provider; `play` once."""

    def __init__(
        self, schedule: Schedule, home: Hosts, folder: Path, watcher: Watcher, cloud: Cloud | None
    ) -> None:
        self._schedule = schedule
        self._home = home
        self._folder = folder
        self._watcher = watcher
        self._cloud = cloud
        self._begun_s = time.monotonic()
        self._open: set[int] = set(range(len(schedule.deeds)))
        self._later: list[tuple[float, str, Deed, float, int]] = []
        self._commands: list[subprocess.Popen[str]] = []
        self._aways: list[Away] = []
        self._reviving: list[tuple[float, subprocess.Popen[str]]] = []

    def play(self) -> Played:
        if self._schedule.then == "restored":
            self._twice()
        else:
            self._once()
        played = Played(self._folder, self._watcher, self._home, self._aways)
        played.over, played.now_s = self._is_over(), boot_s(self._folder)
        played.seconds = time.monotonic() - self._begun_s
        played.up_code = self._commands[0].poll() if self._commands else None
        played.said = "\n".join(map(_said, self._commands))
        return played

    def _once(self) -> None:
        following = self._up()
        away_s = sum(deed.seconds for deed in self._schedule.deeds if deed.do == "kill all")
        limit_s = time.monotonic() + LIMIT_S[self._schedule.provider] + away_s
        quiet_s = None
        while time.monotonic() < limit_s:
            self._do_what_is_due()
            waits = self._later or self._reviving
            done = following.poll() is not None and not waits and self._is_over()
            quiet_s = (quiet_s or time.monotonic()) if done else None
            if quiet_s is not None and time.monotonic() - quiet_s > 0.6:
                return
            time.sleep(0.02)

    def _twice(self) -> None:
        """The same once more, from a copy of the journal that knows nothing of the first time."""
        self._home.run("keeper", "start")
        self._home.run("keeper", "stop")
        root, kept = self._home.places.root, self._folder / "kept"
        kept.mkdir()
        names = ("gpurun.db", "gpurun.db-wal", "gpurun.db-shm", "timers.log")
        for name in names:
            if (root / name).exists():
                shutil.copy2(root / name, kept / name)
        self._once()
        self._home.close()
        for name in names:
            (root / name).unlink(missing_ok=True)
            if (kept / name).exists():
                shutil.copy2(kept / name, root / name)
        shutil.rmtree(self._home.work / "runs", ignore_errors=True)
        self._once()

    def _up(self) -> "subprocess.Popen[str]":
        schedule = self._schedule
        recipe = self._home.recipe(
            train=TRAININGS[schedule.train],
            setup_minutes=schedule.setup_minutes,
            run_minutes=schedule.run_minutes,
            grace_minutes=schedule.grace_minutes,
        )
        words = ["up", recipe, "--yes", "-d", "--set", f"budget.max_usd={schedule.max_usd}"]
        if self._cloud is not None:
            words += ["--provider", schedule.provider, *FOUR_H100, "--accept-one-guard"]
        started = self._home.start(*words)
        self._commands.append(started)
        return started

    # Deeds.

    def _do_what_is_due(self) -> None:
        for number in sorted(self._open):
            deed = self._schedule.deeds[number]
            asked = self._folder / f"asked.{number}"
            if deed.point and asked.exists():
                self._open.discard(number)
                self._do(deed, int(asked.read_text()))
            elif not deed.point and time.monotonic() - self._begun_s >= deed.at_s:
                self._open.discard(number)
                self._do(deed, self._driver())
        for reviving in [each for each in self._reviving if each[1].poll() is not None]:
            self._reviving.remove(reviving)
            self._aways.append(Away(reviving[0], boot_s(self._folder)))
        now_s = time.monotonic()
        for one in [each for each in self._later if each[0] <= now_s]:
            self._later.remove(one)
            self._end(*one[1:])

    def _do(self, deed: Deed, pid: int) -> None:
        if deed.point:
            _until_stopped(pid)
        since_s = boot_s(self._folder)
        match deed.do:
            case "kill":
                _kill(pid)
                if deed.who == "cli":  # nobody else may be there yet
                    self._wait(replace(deed, seconds=1), "command", since_s, pid)
                elif deed.who in ("keeper", "any"):
                    self._aways.append(Away(since_s, since_s + 2))
            case "kill keeper":
                if (found := keeper.running(self._home.places)) is not None:
                    _kill(found)
                self._aways.append(Away(since_s, since_s + 2))
            case "kill all":
                self._home.signal_all(signal.SIGKILL)
                self._home.signal_all(signal.SIGKILL)
                self._wait(deed, "command", since_s, pid)
                return
            case "stop":
                self._wait(deed, "continue", since_s, pid)
                return
            case "sleep":
                self._sleep(deed.seconds)
                self._aways.append(Away(since_s, boot_s(self._folder)))
            case "wall":
                self._shift("wall", deed.seconds)
            case "fault":
                self._fault(deed.words[0], deed.values)
                self._wait(deed, "clear", since_s, pid)
            case "gpurun":
                self._command(deed.words)
        _signal(pid, signal.SIGCONT)

    def _wait(self, deed: Deed, how: str, since_s: float, pid: int) -> None:
        self._later.append((time.monotonic() + deed.seconds, how, deed, since_s, pid))

    def _end(self, how: str, deed: Deed, since_s: float, pid: int) -> None:
        match how:
            case "command":
                self._command(("status",))
                self._reviving.append((since_s, self._commands[-1]))
            case "continue":
                if deed.who in ("keeper", "any"):
                    self._aways.append(Away(since_s, boot_s(self._folder)))
                _signal(pid, signal.SIGCONT)
            case "clear":
                self._clear(deed.words[0])
                now_s = boot_s(self._folder)
                # What was refused is asked again at growing distances: as long again at most.
                self._aways.append(Away(since_s, now_s + (now_s - since_s)))

    def _sleep(self, seconds: float) -> None:
        """The lid is closed, and opened again; the provider's time goes on meanwhile."""
        self._home.signal_all(signal.SIGSTOP)
        self._shift("boot", seconds)
        self._shift("wall", seconds)
        if self._cloud is not None:
            self._cloud.advance(seconds)
        self._home.signal_all(signal.SIGCONT)

    def _shift(self, which: str, seconds: float) -> None:
        file = self._folder / f"{which}_shift"
        before_s = float(file.read_text()) if file.exists() else 0.0
        new = file.with_suffix(".new")
        new.write_text(str(before_s + seconds))
        new.rename(file)

    def _fault(self, name: str, values: dict[str, object]) -> None:
        if self._cloud is not None:
            self._cloud.fault(name, **values)
        else:
            self._set_local(name, int(str(values.get("times", -1))))

    def _clear(self, name: str) -> None:
        if self._cloud is not None:
            self._cloud.clear(name)
        else:
            self._set_local(name, 0)

    def _set_local(self, name: str, times: int) -> None:
        file = self._folder / "faults.json"
        with locked(self._folder):
            faults = json.loads(file.read_text()) | {name: times}
            file.write_text(json.dumps(faults))

    def _command(self, words: tuple[str, ...]) -> None:
        runs = self._rows("select id from runs order by created_at desc limit 1")
        if "RUN" in words and not runs:
            return
        said = [runs[0][0] if word == "RUN" else word for word in words]
        self._commands.append(self._home.start(*said))

    def _driver(self) -> int:
        for [run] in self._rows("select id from runs"):
            if (pid := holder(self._home.places.run_lock(str(run)))) is not None:
                return pid
        return 0

    # What has become of it.

    def _is_over(self) -> bool:
        """No run goes on, no attempt may bill, nothing of ours lives."""
        runs = self._rows("select state from runs")
        attempts = self._rows("select state from instances")
        return (
            all(state in ENDS_OUTSIDE for [state] in runs)
            and all(state in OVER for [state] in attempts)
            and not self._watcher.alive()
        )

    def _rows(self, query: str) -> list[tuple[object, ...]]:
        return rows(self._home.places.database, query)


def rows(database: Path, query: str) -> list[tuple[object, ...]]:
    """What a journal says; nothing where there is none."""
    if not database.exists():
        return []
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as journal:
            return journal.execute(query).fetchall()
    except sqlite3.Error:
        return []


@contextmanager
def played(schedule: Schedule, root: Path) -> Iterator[Played]:
    """The schedule, played to its end; everything of it is there until the block ends."""
    with ExitStack() as undo:
        running = None
        if schedule.provider != "local":
            running = undo.enter_context(cloud(schedule.provider))
        home = Hosts(root / "home")
        undo.callback(_close, home)
        folder = root / "chaos"
        folder.mkdir(parents=True)
        (folder / "faults.json").write_text("{}")
        deeds = [{"who": d.who, "point": d.point, "nth": d.nth} for d in schedule.deeds]
        (folder / "deeds.json").write_text(json.dumps(deeds))
        home.env |= {
            inside.FOLDER: str(folder),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent / "entry"), str(ROOT)]),
            "GPURUN_LOCAL_USD_PER_HOUR": USD_PER_HOUR,
        }
        meter = _meter(running, home, schedule)
        watcher = undo.enter_context(Watcher(meter, folder))
        yield Stage(schedule, home, folder, watcher, running).play()


def _meter(running: Cloud | None, home: Hosts, schedule: Schedule) -> Meter:
    """With somebody else's box beside ours, whose label looks like one of ours."""
    if running is not None:
        home.open_account(running)
        return CloudMeter(running)
    meter = LocalMeter(home, float(USD_PER_HOUR))
    offer = Offer("local", "local", None, 0, Decimal(USD_PER_HOUR), 1)
    far = SystemClock().now()
    need = Need(None, 0, 1)
    Local(home.places.ensure().root, Decimal(USD_PER_HOUR), SystemClock()).create(
        Order(offer, need, FOREIGN, far, far, Decimal(100))
    )
    meter.foreign.add(FOREIGN)
    return meter


def _close(home: Hosts) -> None:
    """End what the home started: its processes first, then its boxes."""
    home.signal_all(signal.SIGCONT)
    home.close()
    super(Hosts, home).close()


def _until_stopped(pid: int) -> None:
    deadline_s = time.monotonic() + STOPPED_WITHIN_S
    while time.monotonic() < deadline_s:
        with suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                return
        time.sleep(0.002)


def _said(command: "subprocess.Popen[str]") -> str:
    if command.poll() is None:
        return f"{command.args}: goes on"
    said = " ".join(command.communicate())
    return f"{command.args}: {command.returncode} {said}"


def _kill(pid: int) -> None:
    _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    if pid > 1:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
