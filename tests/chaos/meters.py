"""What truly lives and bills, seen from outside, on the boot clock of the schedule."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from provisioners.local import box, processes
from tests.chaos.inside import boot_s
from tests.chaos.withheld import Withheld, withheld_s
from tests.clouds.serve import Cloud
from tests.homes import Home

LOOK_EVERY_S = 0.05
FOREIGN = "gpurun-zzzzzz-aaaaaaaa-bbbbbb"  # as if by somebody else's gpurun
STARTED, TOLD = "out/launched", "out/told"  # a training's first deed, and its answer to SIGTERM


@dataclass(slots=True)
class Life:
    """One box from its first to its last sighting; `died_s` None: it lives.

    One whose provider had hidden it, while it billed on, was so from `hid_s` to `back_s`.
    """

    label: str
    foreign: bool
    usd_per_hour: float
    born_s: float
    launched_s: float | None = None
    told_s: float | None = None
    died_s: float | None = None
    hid_s: float | None = None
    back_s: float | None = None

    @property
    def owner(self) -> str:
        """The id of the journal that it was bought by, as its label has it."""
        return self.label.split("-")[1] if self.label.count("-") == 3 else ""

    @property
    def run(self) -> str:
        """The id of its run, as its label has it."""
        return self.label.split("-")[2] if self.label.count("-") == 3 else ""

    def was_hidden(self, at_s: float) -> bool:
        if self.hid_s is None or at_s < self.hid_s:
            return False
        return self.back_s is None or at_s < self.back_s


@dataclass(frozen=True, slots=True)
class Sighting:
    key: str
    label: str
    foreign: bool
    usd_per_hour: float
    launched: bool
    told: bool
    hidden: bool = False  # by a provider that says it is gone


class Meter(Protocol):
    def look(self) -> Iterator[Sighting]:
        """Everything that lives now."""


class LocalMeter:
    """The boxes of this machine: a directory each, until it or its first process is gone."""

    def __init__(self, home: Home, usd_per_hour: float) -> None:
        self._boxes = home.places.boxes
        self._usd_per_hour = usd_per_hour
        self.foreign: set[str] = set()

    def look(self) -> Iterator[Sighting]:
        with suppress(FileNotFoundError):
            for path in sorted(self._boxes.iterdir()):
                if path.name.startswith(".") or self._ended(path / "box.json"):
                    continue
                launched, told = ((path / "root" / each).exists() for each in (STARTED, TOLD))
                foreign = path.name in self.foreign
                yield Sighting(path.name, path.name, foreign, self._usd_per_hour, launched, told)

    def _ended(self, record: Path) -> bool:
        """Whether the record names a first process that does not run: nothing bills on here."""
        with suppress(OSError, ValueError):
            made = box.read(record)
            return made is not None and not processes.runs(made.cage.init)
        return False


class CloudMeter:
    """The books of an emulated cloud; somebody else's box is there as soon as one of ours is."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def look(self) -> Iterator[Sighting]:
        world = self._cloud.world
        with world.lock:
            world.settle()
            if world.rentals and not any(one.label == FOREIGN for one in world.rentals):
                world.put_foreign(FOREIGN)
            living = [(number, one) for number, one in enumerate(world.rentals) if one.alive]
            for number, one in living:
                yield Sighting(
                    str(number),
                    one.label,
                    one.foreign,
                    float(one.meter.usd_per_hour),
                    self._has(one, STARTED),
                    self._has(one, TOLD),
                    world.hidden(one),
                )

    def _has(self, rental: object, file: str) -> bool:
        machine = getattr(rental, "machine", None)
        if machine is None or not machine.done() or machine.exception() is not None:
            return False
        box = machine.result().box
        folders = (box.root / "workspace/gpurun", box.home, box.root / "root")
        return any((folder / file).exists() for folder in folders)


class Watcher:
    """Looks at a meter without pause until the block ends."""

    def __init__(self, meter: Meter, folder: Path) -> None:
        self._meter = meter
        self._folder = folder
        self._lives: dict[str, Life] = {}
        self.withheld = Withheld()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="meter")
        self.broken = ""

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def lives(self) -> list[Life]:
        return list(self._lives.values())

    def alive(self) -> list[Life]:
        """Those of ours that bill now."""
        return [life for life in self.lives if life.died_s is None and not life.foreign]

    def _watch(self) -> None:
        try:
            while not self._stop.wait(LOOK_EVERY_S):
                self._look()
            self._look()
        except Exception as error:  # told by whoever judges
            self.broken = repr(error)

    def _look(self) -> None:
        before_s = boot_s(self._folder)
        self.withheld.note(before_s, withheld_s())
        seen = {sighting.key: sighting for sighting in self._meter.look()}
        for key, one in seen.items():
            life = self._lives.get(key)
            if life is None:
                life = Life(one.label, one.foreign, one.usd_per_hour, before_s)
                self._lives[key] = life
            life.usd_per_hour = max(life.usd_per_hour, one.usd_per_hour)
            if one.launched and life.launched_s is None:
                life.launched_s = before_s
            if one.told and life.told_s is None:
                life.told_s = before_s
            if one.hidden and life.hid_s is None:
                life.hid_s = before_s
            elif not one.hidden and life.hid_s is not None and life.back_s is None:
                life.back_s = before_s
        for key, life in self._lives.items():
            if key not in seen and life.died_s is None:
                life.died_s = before_s
            elif key in seen and life.died_s is not None:
                life.died_s = None  # it has come back
