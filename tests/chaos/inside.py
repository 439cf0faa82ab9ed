"""Inside of gpurun's processes: every point of the journal is written down, and may be the last.

A point is passed when a transaction of the journal or a line of the black box is on the disk, or a
provider was (or is about to be) told something.  Where a schedule has something in store, the
process says so and stops itself; whoever plays the schedule does the rest.
"""

import fcntl
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = "CHAOS_FOLDER"  # in the environment: where one schedule is played
MACHINE = "machine"  # a file there: what this machine is, if it is another one than ours
TOLD = ("create", "destroy", "destroy_many", "arm_provider_timer", "disarm_provider_timer")
EVERY_TICK = ("Keepers.beat", "Keepers.listed", "Ledger.hold", "Runs.progress")


def install() -> None:
    """Follow this process, if a schedule is being played here."""
    folder = os.environ.get(FOLDER)
    if folder:
        inside = Inside(Path(folder), _who(sys.orig_argv))
        sys.meta_path.insert(0, _Patching(inside.patches()))


def _who(words: Sequence[str]) -> str:
    if "gpurun.engine" in words:
        return "takeover" if "--takeover" in words else "driver"
    if "gpurun.keeper" in words:
        return "keeper"
    return "cli"


class Inside:
    def __init__(self, folder: Path, who: str) -> None:
        self._folder = folder
        self._who = who

    def patches(self) -> dict[str, Callable[[ModuleType], None]]:
        """What is put around a module of gpurun once it is loaded."""
        return {
            "gpurun.clock": self._clock,
            "gpurun.store.owner": self._owner,
            "gpurun.store.database": self._database,
            "gpurun.blackbox": self._blackbox,
            "gpurun.wiring": self._wiring,
        }

    def passed(self, point: str, label: str = "") -> None:
        with locked(self._folder):
            log = self._folder / "points.log"
            begin = f"{self._who}|{point}|"
            text = log.read_text() if log.exists() else ""
            nth = text.count(f"\n{begin}") + text.startswith(begin) + 1
            with log.open("a") as file:
                file.write(f"{begin}{nth}|{label}|{boot_s(self._folder):.3f}|{os.getpid()}\n")
        here = {self._who, "any"}
        for number, deed in enumerate(json.loads((self._folder / "deeds.json").read_text())):
            if deed.get("who") in here and (deed.get("point"), deed.get("nth", 1)) == (point, nth):
                asked = self._folder / f"asked.{number}"
                if not asked.exists():
                    new = asked.with_suffix(".new")
                    new.write_text(str(os.getpid()))
                    new.rename(asked)
                    os.kill(os.getpid(), signal.SIGSTOP)

    def _clock(self, module: ModuleType) -> None:
        module.time = _Time(self._folder)  # type: ignore[attr-defined]

    def _owner(self, module: ModuleType) -> None:
        if (named := self._folder / MACHINE).exists():
            module.machine_hash = named.read_text  # type: ignore[attr-defined]

    def _database(self, module: ModuleType) -> None:
        original = module.Database.write

        @contextmanager
        def whole(database: Any, name: str, label: str) -> Iterator[Any]:
            with original(database) as session:
                yield session
            if name not in EVERY_TICK:
                self.passed(name, label)

        def write(database: Any) -> Any:
            frame = sys._getframe(1)
            found = frame.f_locals.get("label") or frame.f_locals.get("timer")
            label = getattr(found, "label", found)
            return whole(database, frame.f_code.co_qualname, str(label or ""))

        module.Database.write = write

    def _blackbox(self, module: ModuleType) -> None:
        original = module.BlackBox.append

        def append(box: Any, entry: Any) -> None:
            original(box, entry)
            self.passed(f"BlackBox.append {entry.state}", entry.label)

        module.BlackBox.append = append

    def _wiring(self, module: ModuleType) -> None:
        original = module.provisioner

        def provisioner(name: str, *rest: Any) -> Any:
            cloud = original(name, *rest)
            if name == "local":
                lie(cloud, self._folder)
            for method in TOLD:
                if hasattr(cloud, method):
                    setattr(cloud, method, self._told(method, getattr(cloud, method)))
            return cloud

        module.provisioner = provisioner

    def _told(self, method: str, original: Callable[..., Any]) -> Callable[..., Any]:
        from gpurun.errors import NoCapacity

        def tell(first: Any, *rest: Any) -> Any:
            label = str(getattr(first, "label", first))
            point = f"Cloud.{method.removesuffix('_many')}"  # of several boxes or of one
            self.passed(f"before {point}", label)
            try:
                return original(first, *rest)
            except NoCapacity:
                self.passed(f"{point} refused", label)
                raise
            finally:
                self.passed(point, label)

        return tell


def lie(cloud: Any, folder: Path) -> None:
    """The faults of a provider, for the one that has no knobs: this machine."""
    from gpurun.errors import CreateUnclear, ProviderUnreachable

    create, destroy, account = cloud.create, cloud.destroy, cloud.account
    instances, instance = cloud.instances, cloud.instance

    def lying_create(order: Any) -> Any:
        if taken(folder, "create_never"):
            raise CreateUnclear("no answer, and nothing was made")
        made = create(order)
        if taken(folder, "create_lost"):
            raise CreateUnclear("the answer was lost")
        return made

    def lying_destroy(instance_id: str) -> None:
        require_up()
        if not taken(folder, "destroy_lies") and not taken(folder, "other_account"):
            destroy(instance_id)

    def lying_instances() -> Any:
        require_up()
        unseen = taken(folder, "list_empty") or taken(folder, "other_account")
        return [] if unseen else instances()

    def lying_instance(instance_id: str) -> Any:
        require_up()
        return None if taken(folder, "other_account") else instance(instance_id)

    def lying_account() -> str:
        return "somebody-else" if taken(folder, "other_account") else str(account())

    def require_up() -> None:
        if taken(folder, "down"):
            raise ProviderUnreachable("no answer")

    cloud.create, cloud.destroy, cloud.account = lying_create, lying_destroy, lying_account
    cloud.instances, cloud.instance = lying_instances, lying_instance


def taken(folder: Path, fault: str) -> bool:
    """Whether this fault is set now; one that is set so many times is used up by that."""
    file = folder / "faults.json"
    with locked(folder):
        faults = json.loads(file.read_text())
        times = faults.get(fault, 0)
        if times > 0:
            faults[fault] = times - 1
            file.write_text(json.dumps(faults))
        return bool(times)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def boot_s(folder: Path) -> float:
    """The boot clock as the schedule has it: with the hours that were slept through."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) + _shift_s(folder, "boot")


def _shift_s(folder: Path, which: str) -> float:
    try:
        return float((folder / f"{which}_shift").read_text() or 0)
    except FileNotFoundError:
        return 0.0


class _Time:
    """The module `time` for gpurun/clock.py, whose clocks can be moved."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time(self) -> float:
        return time.time() + _shift_s(self._folder, "wall")

    def clock_gettime(self, which: int) -> float:
        slept_s = _shift_s(self._folder, "boot") if which == time.CLOCK_BOOTTIME else 0.0
        return time.clock_gettime(which) + slept_s


class _Patching(importlib.abc.MetaPathFinder):
    """Loads some modules as ever, and then puts something around them."""

    def __init__(self, patches: dict[str, Callable[[ModuleType], None]]) -> None:
        self._patches = patches

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        patch = self._patches.get(name)
        if patch is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None and spec.loader is not None
        load = spec.loader.exec_module

        def load_and_patch(module: ModuleType) -> None:
            load(module)
            patch(module)

        spec.loader.exec_module = load_and_patch  # type: ignore[method-assign]
        return spec
