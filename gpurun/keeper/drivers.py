"""Drivers seen from the keeper: told that their run is ending, started again when they died."""

import contextlib
import logging
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from gpurun import spawn
from gpurun.clock import Clock
from gpurun.keeper.clouds import Clouds
from gpurun.locks import holder
from gpurun.model import Run
from gpurun.places import Places
from gpurun.provider import Provisioner
from gpurun.signals import TOLD

log = logging.getLogger("gpurun.keeper")

FREE_FOR_S = 2.0
AT_MOST_EVERY_S = 60.0
NEVER_DRIVEN_S = 30.0


class Drivers:
    """Processes of their own: the keeper never does a driver's work."""

    def __init__(self, places: Places, clock: Clock, clouds: Callable[[str], Provisioner]) -> None:
        self._places = places
        self._clouds = clouds
        self._clock = clock
        self._free_since_s: dict[str, float] = {}
        self._wait_s: dict[str, float] = {}
        self._locks: dict[str, Path] = {}

    def drives(self, run_id: str) -> bool:
        try:
            return holder(self._lock(run_id)) is not None
        except OSError:  # a lock that cannot be asked must not keep a box alive
            return False

    def tell(self, run_id: str) -> None:
        """The run is ending: its driver is told, or one started to collect."""
        pid = holder(self._places.run_lock(run_id))
        if pid is None:
            self.start(run_id)
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, TOLD)
            os.kill(pid, signal.SIGCONT)  # one that was stopped hears it, too

    def lost(self, run: Run) -> bool:
        """Its lock was free twice, two seconds apart or more after each start in vain."""
        if holder(self._lock(run.id)) is not None:
            self._free_since_s.pop(run.id, None)
            return False
        now_s = self._clock.boot_s()
        since_s = self._free_since_s.setdefault(run.id, now_s)
        if now_s - since_s < self._wait_s.get(run.id, FREE_FOR_S):
            return False
        young = self._clock.now() - run.created_at < timedelta(seconds=NEVER_DRIVEN_S)
        return not (run.driver_epoch == 0 and young)  # else `up` is just starting its driver

    def _lock(self, run_id: str) -> Path:
        """Asked of each live run at each tick: making a path costs as much as looking."""
        if run_id not in self._locks:
            self._locks[run_id] = self._places.run_lock(run_id)
        return self._locks[run_id]

    def start(self, run_id: str) -> None:
        """Again and again if need be, at growing distances."""
        self._wait_s[run_id] = min(self._wait_s.get(run_id, FREE_FOR_S) * 2, AT_MOST_EVERY_S)
        self._free_since_s[run_id] = self._clock.boot_s()
        log.info("run %s has no driver; starting one", run_id)
        run_dir = self._places.run_dir(run_id)
        # A key that was handed over may be in the keeper's memory alone by now.
        environ = self._clouds.environ() if isinstance(self._clouds, Clouds) else os.environ
        arguments = ("gpurun.engine", run_id, "--takeover")
        spawn.detached(*arguments, log=run_dir / "driver.log", environ=environ)
