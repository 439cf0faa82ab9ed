"""This machine as a provider: a box is a directory and the processes held together in it.

    boxes/<label>/root      the box: its commands run here
    boxes/<label>/box.json  what proves its processes ours: boot id, init's pid and start time
    boxes/<label>/ending    somebody has asked for its end
    boxes/.used/<label>     one label, one create, ever: made first, never removed
    boxes/.trash/           what is left of ended boxes until it is removed
    boxes/.kept/            whole boxes that ended on a full disk, for their artifacts
    salvage/<label>/        artifacts that nobody had fetched when their box ended
    fuses/<label>/          the fuse's own files, outside of what it ends

The instance id is the label.  A box is gone when it has no process and no directory.  Its init
waits until box.json is written, so a creator killed half way leaves a directory and nothing that
runs.  Creator and destroyer may meet: one writes box.json and then looks for `ending`, the other
writes `ending` and then looks for box.json, so at least one of them sees the other.
"""

import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import NoReturn
from uuid import uuid4

from gpurun.clock import Clock
from gpurun.errors import CreateFailedButMade, CreateUnclear, NoCapacity, ProviderError
from gpurun.model import Created, Instance, InstanceState, Need, Offer, Order
from gpurun.shell.local import LocalShell
from provisioners import removal
from provisioners.local import box, machine, processes, strategies, tmpfs
from provisioners.local.box import Box
from provisioners.local.containment import STRATEGIES, launch
from provisioners.local.strategies import CannotContain, Marked

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Local:
    """Rents this machine to its owner, at a price, so that budgets can be tried for free."""

    name = "local"
    traits = machine.TRAITS

    def __init__(
        self,
        state_dir: Path,
        usd_per_hour: Decimal,
        clock: Clock,
        containment: Sequence[str] = tuple(STRATEGIES),
    ) -> None:
        self._state_dir = state_dir.absolute()
        self._boxes = self._state_dir / "boxes"
        self._usd_per_hour = usd_per_hour
        self._clock = clock
        self._strategies = tuple(containment)

    def account(self) -> str:
        return machine.identity()

    def offers(self, need: Need) -> Iterable[Offer]:
        offer = machine.offer(need, self._state_dir, self._usd_per_hour)
        return [offer] if offer else []

    def instances(self) -> list[Instance]:
        try:
            with os.scandir(self._boxes) as entries:
                labels = sorted(e.name for e in entries if e.is_dir() and _is_label(e.name))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ProviderError(f"local: {self._boxes} cannot be read: {error.strerror}") from error
        return [found for label in labels if (found := self.instance(label))]

    def instance(self, instance_id: str) -> Instance | None:
        home = self._boxes / instance_id
        if not _is_label(instance_id) or not home.is_dir():
            return None
        try:
            made = box.read(home / "box.json")
            state = made.state(self._clock) if made else InstanceState.STARTING
        except (ValueError, OSError):
            made, state = None, InstanceState.UNKNOWN
        return Instance(
            provider=self.name,
            id=instance_id,
            label=instance_id,
            state=InstanceState.ENDING if (home / "ending").exists() else state,
            usd_per_hour=made.usd_per_hour if made else self._usd_per_hour,
            created_at=made.created_at if made else None,
            gpu=made.gpu if made else None,
            gpu_count=made.gpu_count if made else 0,
        )

    def create(self, order: Order) -> Created:
        label = order.label
        if not _is_label(label):
            raise NoCapacity(f"local: {label!r} cannot name a box; nothing was made")
        if self._usd_per_hour > order.max_usd_per_hour:
            raise NoCapacity(
                f"local: this machine costs ${self._usd_per_hour}/h, more than the "
                f"${order.max_usd_per_hour}/h allowed; nothing was made"
            )
        try:
            self._use_up(label)
        except FileExistsError:
            self._refuse_again(label)
        except OSError as error:
            raise NoCapacity(f"local: {self._boxes} cannot be written: {error}") from error
        try:
            self._make(order)
        except (CannotContain, OSError) as error:
            try:
                self._take_away(self._boxes / label)
            except ProviderError as also:
                raise CreateFailedButMade(f"local: {error}; {also}", label) from error
            raise NoCapacity(f"local: no box could be made of this machine: {error}") from error
        return Created(label)

    def destroy(self, instance_id: str) -> None:
        home = self._boxes / instance_id
        if _is_label(instance_id) and home.is_dir():
            with suppress(OSError):  # gone by now; or a full disk, which must not keep it alive
                (home / "ending").touch()
            try:
                self._end_processes(instance_id, home)
            except OSError as error:
                raise ProviderError(f"local: {home} cannot be ended yet: {error}") from error
            try:
                removal.save_uncollected(home / "root", self.salvage(instance_id))
            except OSError:  # a full disk: the box is over all the same, and its files stay whole
                self._take_away(home, to=".kept")
            else:
                self._take_away(home)
        elif _is_label(instance_id):  # its directory was removed by hand, its processes were not
            self._conclude_end(instance_id, Marked().end_all(instance_id, self._clock))
        self._empty_trash()

    def shell(self, instance_id: str) -> LocalShell:
        """Enters the box; of one that is stopped it still fetches files."""
        made, home = self._read(instance_id)
        return LocalShell(
            home / "root",
            self._enter(made, home),
            machine.environment(home / "root", instance_id, os.environ),
            alive=self._is_running(made, home),
        )

    def fuse_shell(self, instance_id: str) -> LocalShell:
        """Of this machine, without the box's mark; there is one also when the box is gone."""
        self._checked(instance_id)
        return LocalShell(self._state_dir, env={"PATH": os.environ.get("PATH", os.defpath)})

    def fuse_home(self, instance_id: str) -> str:
        home = self._state_dir / "fuses" / self._checked(instance_id)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        return str(home)

    def inside(self, instance_id: str, text: str) -> str:
        """Written to the fuse's files, so with an environment that cannot hold a secret."""
        made, home = self._read(instance_id)
        path = {"PATH": os.environ.get("PATH", os.defpath)}
        environment = machine.environment(home / "root", instance_id, path)
        words = ["env", "-i", *(f"{name}={value}" for name, value in environment.items())]
        command = shlex.join([*words, *self._enter(made, home), "sh", "-c", text])
        lives = f"{strategies.lives_script(made.cage.init)}\nlives || exit 1\n"
        return f"(\n{made.same_boot_script(otherwise=1)}{lives}{command}\n)\n"

    def self_destroy(self, instance_id: str) -> str:
        """Status 0: no process of the box is left, nor a secret on tmpfs.  All else stays."""
        made, _ = self._read(instance_id)
        script = STRATEGIES[made.cage.strategy].end_script(made.cage)
        end = f"(\n{made.same_boot_script(otherwise=0)}{script})"
        return f"{end} && {{ {tmpfs.forget_script(instance_id)}; }}\n"

    def salvage(self, instance_id: str) -> Path:
        """Where artifacts went that were not fetched before the end, if there were some."""
        return self._state_dir / "salvage" / self._checked(instance_id)

    def containment(self) -> str:
        try:
            started = launch(self._strategies, f"probe-{uuid4().hex}")
        except CannotContain as error:
            return f"none of the known ways works here: {error}"
        started.abort()
        return STRATEGIES[started.cage.strategy].promise

    def _use_up(self, label: str) -> None:
        for name in (".used", ".trash", ".kept"):
            (self._boxes / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._boxes / ".used" / label).touch(exist_ok=False)

    def _refuse_again(self, label: str) -> NoReturn:
        message = f"local: {label} was asked for before, and a label makes one box ever"
        if self.instance(label):
            raise CreateFailedButMade(f"{message}; it exists", label)
        raise CreateUnclear(f"{message}; if that one is not gone, it will be listed")

    def _make(self, order: Order) -> None:
        home = self._boxes / order.label
        home.mkdir(mode=0o700)
        for name in ("root", "root/home", "root/tmp", "root/.gpurun"):
            (home / name).mkdir()
        started = launch(self._strategies, order.label)
        try:
            Box(
                cage=started.cage,
                boot_id=self._clock.boot_id,
                pid_namespace=box.own_namespace(),
                created_at=self._clock.now(),
                usd_per_hour=self._usd_per_hour,
                gpu=order.offer.gpu,
                gpu_count=order.offer.gpu_count,
            ).write(home / "box.json")
            # Both: when a destroyer has taken the directory away, `ending` is not there either.
            if (home / "ending").exists() or not (home / "box.json").exists():
                raise OSError(f"{order.label} was destroyed while it was made")
            started.go()
        except BaseException:
            started.abort()
            raise

    def _end_processes(self, label: str, home: Path) -> None:
        try:
            made = box.read(home / "box.json")
        except ValueError:
            made = None
        if made is None:  # half made, or its record is damaged: its processes still bear its mark
            left = Marked().end_all(label, self._clock)
        elif made.boot_id != self._clock.boot_id:
            return
        elif made.pid_namespace != box.own_namespace():
            raise ProviderError(
                f"local: {label} was made in another pid namespace (a container?), where alone its "
                f"processes can be told: end it there, or remove {home} if nothing of it runs"
            )
        else:
            left = STRATEGIES[made.cage.strategy].end(made.cage, self._clock)
        self._conclude_end(label, left)

    def _conclude_end(self, label: str, left: Sequence[object]) -> None:
        """ProviderError if somebody is left; else no secret of theirs is, either."""
        if left:
            pids = " ".join(map(str, left))
            raise ProviderError(f"local: processes of {label} do not end: {pids}")
        tmpfs.forget(label)

    def _take_away(self, home: Path, to: str = ".trash") -> None:
        """The row vanishes at once, the files as fast as they can be removed."""
        try:
            home.rename(self._boxes / to / f"{home.name}-{uuid4().hex}")
        except FileNotFoundError:
            return
        except OSError as error:
            raise ProviderError(f"local: {home} cannot be removed: {error.strerror}") from error

    def _empty_trash(self) -> None:
        """Away from here: a gigabyte of packages must not keep the end waiting for its word."""
        trash = self._boxes / ".trash"
        with suppress(FileNotFoundError):
            if any(trash.iterdir()):
                removal.begin(trash)

    def _read(self, instance_id: str) -> tuple[Box, Path]:
        home = self._boxes / self._checked(instance_id)
        try:
            made = box.read(home / "box.json")
        except ValueError as error:
            raise ProviderError(
                f"local: the record of {instance_id} is damaged: {error}"
            ) from error
        if made is None:
            raise ProviderError(f"local: there is no box {instance_id}")
        return made, home

    def _enter(self, made: Box, home: Path) -> list[str]:
        # Entering a mount namespace loses the directory, so it is named again inside.
        there = ["sh", "-c", 'cd "$0" && exec "$@"', str(home / "root")]
        return [*STRATEGIES[made.cage.strategy].enter(made.cage), *there]

    def _is_running(self, made: Box, home: Path) -> Callable[[], bool]:
        if made.boot_id != self._clock.boot_id or made.pid_namespace != box.own_namespace():
            return lambda: False
        return lambda: processes.runs(made.cage.init) and not (home / "ending").exists()

    def _checked(self, instance_id: str) -> str:
        if not _is_label(instance_id):
            raise ProviderError(f"local: {instance_id!r} is not the id of a box")
        return instance_id


def _is_label(name: str) -> bool:
    return _LABEL.fullmatch(name) is not None
