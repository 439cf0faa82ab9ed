"""Plays one schedule: a home, its provider, `up`, the deeds; and waits until all is over."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

from gpurun import keeper
from gpurun.clock import SystemClock
from gpurun.locks import holder
from gpurun.model import Need, Offer, Order
from provisioners.local import Local
from tests.chaos.beside import TYPED, Beside
from tests.chaos.disk import fill, free, small_disk
from tests.chaos.inside import boot_s, locked
from tests.chaos.machine import USD_PER_HOUR, Machine, placed, said
from tests.chaos.meters import FOREIGN, CloudMeter, LocalMeter, Meter, Watcher
from tests.chaos.restore import back_up, put_back
from tests.chaos.schedule import SECOND_UP, Deed, Schedule
from tests.chaos.withheld import withheld_s
from tests.clouds.serve import Cloud, cloud
from tests.hosts import Hosts

LIMIT_S = {"local": 170.0, "vast": 420.0, "prime": 900.0}
STOPPED_WITHIN_S = 5.0
LOOK_EVERY_S = 0.2  # into the journal: the schedule's processes need the cores
# Faults while which everything can be asked and ended.
NO_OUTAGE = ("reappear_after_s", "price_up", "host_reboot")


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

    machine: Machine
    watcher: Watcher
    beside: Beside | None = None
    aways: list[Away] = field(default_factory=list)
    outages: list[Away] = field(default_factory=list)  # of the provider, for whatever machine
    over: bool = False
    now_s: float = 0.0  # when it was looked at last, on the boot clock
    seconds: float = 0.0
    up_codes: tuple[int | None, ...] = ()  # exit codes; negative: it was killed
    said: str = ""  # by the commands

    def told(self) -> str:
        """All that was said, on either machine."""
        texts = [self.said, self.machine.home.logs()]
        if self.beside is not None:
            texts += [self.beside.said(), self.beside.machine.home.logs()]
        return "\n".join(texts)


class Stage:
    """One home at one provider; `play` once."""

    def __init__(
        self,
        schedule: Schedule,
        machine: Machine,
        watcher: Watcher,
        cloud: Cloud | None,
        beside: Beside | None,
    ) -> None:
        self._schedule = schedule
        self._machine = machine
        self._home = machine.home
        self._folder = machine.folder
        self._watcher = watcher
        self._cloud = cloud
        self._beside = beside
        self._begun_s = time.monotonic()
        self._open: set[int] = set(range(len(schedule.deeds)))
        self._later: list[tuple[float, str, Deed, float, int]] = []
        self._commands: list[subprocess.Popen[str]] = []
        self._ups: list[subprocess.Popen[str]] = []
        self._aways: list[Away] = []
        self._outages: list[Away] = []
        self._reviving: list[tuple[float, subprocess.Popen[str]]] = []

    def play(self) -> Played:
        if self._schedule.then == "restored":
            self._twice()
        else:
            self._once()
        return Played(
            self._machine,
            self._watcher,
            self._beside,
            self._aways,
            self._outages,
            over=self._is_over(),
            now_s=boot_s(self._folder),
            seconds=time.monotonic() - self._begun_s,
            up_codes=tuple(up.poll() for up in self._ups),
            said="\n".join(map(said, self._commands)),
        )

    def _once(self) -> None:
        following = [self._up() for _ in range(2 if self._schedule.beside == SECOND_UP else 1)]
        away_s = sum(deed.seconds for deed in self._schedule.deeds if deed.do == "kill all")
        limit_s = time.monotonic() + LIMIT_S[self._schedule.provider] + away_s - withheld_s()
        quiet_s, looked_s = None, 0.0
        while time.monotonic() < limit_s + withheld_s():
            self._do_what_is_due()
            time.sleep(0.02)
            if time.monotonic() - looked_s < LOOK_EVERY_S:
                continue
            looked_s = time.monotonic()
            if self._beside is not None:
                self._beside.step()
            begun = all(up.poll() is not None for up in following)
            done = begun and not self._later and not self._reviving and self._is_over()
            quiet_s = (quiet_s or looked_s) if done else None
            if quiet_s is not None and looked_s - quiet_s > 0.6:
                return

    def _twice(self) -> None:
        """The same once more, from a copy of the journal that knows nothing of the first time."""
        self._home.run("keeper", "start")  # which names the owner, whom a restored journal knows
        self._home.until(lambda: bool(self._machine.rows("select owner_id from owner")))
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
        started = self._machine.up(self._schedule)
        self._commands.append(started)
        self._ups.append(started)
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
            case "back up":
                back_up(self._home.places, self._folder / "kept")
            case "restore":
                self._home.signal_all(signal.SIGKILL)
                self._home.signal_all(signal.SIGKILL)
                put_back(self._home.places, self._folder / "kept", deed.words)
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
            case "disk full":
                if "no reserve" in deed.words:
                    self._home.places.reserve.unlink(missing_ok=True)
                fill(self._home.places.root)
                self._wait(deed, "free", since_s, pid)
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
                if deed.words[0] not in NO_OUTAGE:
                    self._outages.append(Away(since_s, now_s + (now_s - since_s)))
            case "free":
                free(self._home.places.root)

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
        if (command := self._machine.command(words)) is not None:
            self._commands.append(command)

    def _driver(self) -> int:
        for [run] in self._machine.rows("select id from runs"):
            if (pid := holder(self._home.places.run_lock(str(run)))) is not None:
                return pid
        return 0

    def _is_over(self) -> bool:
        """No run goes on, nothing may bill or does, whoever else is there has done."""
        beside = self._beside is None or self._beside.over()
        return beside and self._machine.over() and not self._watcher.alive()


@contextmanager
def played(schedule: Schedule, root: Path) -> Iterator[Played]:
    """The schedule, played to its end; everything of it is there until the block ends."""
    with ExitStack() as undo:
        running = None
        if schedule.provider != "local":
            running = undo.enter_context(cloud(schedule.provider))
        machine = placed(root / "home", root / "chaos", schedule.deeds)
        if any(deed.do == "disk full" for deed in schedule.deeds):
            undo.enter_context(small_disk(machine.home.places.root))
        undo.callback(_close, machine.home)
        meter = _meter(running, machine.home)
        beside = None
        if schedule.beside in TYPED:
            beside = Beside(schedule, root, machine, running)
            undo.callback(beside.close)
        watcher = undo.enter_context(Watcher(meter, machine.folder))
        yield Stage(schedule, machine, watcher, running, beside).play()


def _meter(running: Cloud | None, home: Hosts) -> Meter:
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
    # One that is dying holds its lock still.
    home.until(lambda: keeper.running(home.places) is None, 10)
    super(Hosts, home).close()


def _until_stopped(pid: int) -> None:
    deadline_s = time.monotonic() + STOPPED_WITHIN_S
    while time.monotonic() < deadline_s:
        with suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                return
        time.sleep(0.002)


def _kill(pid: int) -> None:
    _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    if pid > 1:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
