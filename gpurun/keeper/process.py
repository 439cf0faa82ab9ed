"""The keeper's process: journal, black box, then a tick a second until it is told to stop.

Everything is imported here, eagerly: an upgrade under a running keeper must not break it.
"""

import logging
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from threading import Event

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.blocking import BlockingScheduler

from gpurun import settings as configuration
from gpurun.blackbox import BlackBox
from gpurun.errors import GpurunError
from gpurun.glance import agreed_clock
from gpurun.keeper import handed
from gpurun.keeper.alone import alone
from gpurun.keeper.clouds import Clouds
from gpurun.keeper.daemon import Keeper
from gpurun.keeper.merge import merge_blackbox
from gpurun.places import Places
from gpurun.store import Journal, StoreError
from gpurun.store.owner import machine_hash

log = logging.getLogger("gpurun.keeper")

TICK_S = 1
COMPACT_BYTES = 1 << 20
BUSY_TIMEOUT_S = 0.25  # a write that cannot be made now is made at the next tick


def keep(places: Places) -> None:
    """Keep this state directory until SIGTERM; the caller holds its lock."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    for chatty in ("alembic.runtime.plugins", "apscheduler", "httpx"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    clock = agreed_clock(places.root)
    settings, trouble = configuration.load_for_ending()
    places.keep_settings_trouble(trouble)
    if trouble:
        log.error("%s", trouble)
    clouds = Clouds(places, settings, clock)
    for name in clouds.names():  # one whose key comes later is made when it is asked for
        try:
            clouds(name)
        except GpurunError as error:
            log.warning("%s", error)
    journal = Journal(places.database, clock, busy_timeout_s=BUSY_TIMEOUT_S)
    owner_id, machine = _owner(places, journal)
    if machine not in ("", machine_hash()):
        log.error("this state directory was made on another machine: nothing is ended by itself")
        return
    blackbox = BlackBox(places.blackbox, owner_id, machine)
    keeper = Keeper(places, settings, clock, journal, blackbox, clouds)
    alone(keeper.mending.step)
    alone(partial(_merge, journal, blackbox))
    scheduler = BlockingScheduler(executors={"default": ThreadPoolExecutor(1)})
    stopped = Event()

    def stop(*_: object) -> None:
        """Also while the first tick is under way, before the scheduler runs."""
        stopped.set()
        if scheduler.running:
            scheduler.shutdown(wait=False)

    def forget() -> None:
        """No key of a shell stays where nothing lives that needs it."""
        with suppress(StoreError, OSError):
            if not keeper.busy:
                handed.forget(places, unless=lambda: bool(journal.runs.unfinished()))

    def tick() -> None:
        if stopped.is_set():
            stop()
            return
        # The state directory is gone: once nothing lives that it knew, there is none to keep.
        if not places.keeper_lock.exists() and not keeper.busy:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        keeper.tick()
        forget()

    scheduler.add_job(
        tick,
        "interval",
        seconds=TICK_S,
        max_instances=1,
        coalesce=True,
        misfire_grace_time=None,
    )

    signal.signal(signal.SIGTERM, stop)
    log.info("the keeper is up, pid in %s", places.keeper_lock)
    keeper.tick()
    if not stopped.is_set():
        scheduler.start()
    forget()
    log.info("the keeper was told to stop")


def _merge(journal: Journal, blackbox: BlackBox) -> None:
    merge_blackbox(journal, blackbox)
    if blackbox.path.exists() and blackbox.path.stat().st_size > COMPACT_BYTES:
        blackbox.compact(lambda entry: not entry.settled)


def _owner(places: Places, journal: Journal) -> tuple[str, str]:
    """Whose state directory this is: by the journal, else by the black box, else nobody's."""
    try:
        journal.database.migrate()
        return journal.owner.ensure()
    except StoreError as error:
        log.error("%s", error)
        return BlackBox(places.blackbox, "", "").header() or ("", "")
