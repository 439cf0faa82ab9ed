"""May this state directory be bought from?  Killing never asks (protocol F37-F42, F75)."""

import shutil
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from gpurun.blackbox import BlackBox
from gpurun.clock import Clock, wall_s
from gpurun.errors import UsageError
from gpurun.filesystem import is_network, kind_of
from gpurun.keeper.merge import merge_blackbox
from gpurun.places import Places
from gpurun.store import Journal, StoreError
from gpurun.store.cells import put_right

RESERVE_BYTES = 1 << 20
CLOCK_SLACK = timedelta(seconds=60)


def may_buy(places: Places, clock: Clock) -> Journal:
    """The journal, migrated and proven fit for a purchase; UsageError says what is not."""
    _check_file_system(places)
    journal = Journal(places.database, clock)
    journal.database.migrate()
    journal.database.require_current()
    blackbox = BlackBox(places.blackbox, *journal.owner.ensure())
    try:
        _require_readable(journal, blackbox, clock)
        merge_blackbox(journal, blackbox)
    except OSError as error:
        raise UsageError(
            f"{places.blackbox} cannot be read ({error.strerror}): nothing was rented. Move it "
            "away if nothing is live (`gpurun status`)."
        ) from error
    require_trust(journal)
    _keep_reserve(places)
    return journal


def _require_readable(journal: Journal, blackbox: BlackBox, clock: Clock) -> None:
    """What a live box costs, and until when, is known: caps are worked out from it."""
    left = put_right(journal.database, blackbox.read, clock, but_settled=True)
    if bad := [each for each in left if each.live]:
        raise StoreError(
            f"{journal.database.path} is damaged, and {blackbox.path.name} has no second copy of "
            f"it: nothing was rented ({'; '.join(map(str, bad))}). End that run (`gpurun kill`); "
            "then put the cell right with sqlite3, or move the state directory away."
        )


def require_trust(journal: Journal, undone: str = "nothing was rented") -> None:
    """This journal is of this machine and no older copy, and the clock is not before it."""
    if trouble := journal.owner.trouble():
        raise UsageError(f"{undone}: {trouble}.")
    last = journal.runs.last_event_at()
    wall = datetime.fromtimestamp(wall_s(), UTC)
    if last is not None and wall < last - CLOCK_SLACK:
        raise UsageError(
            f"this machine's clock says {wall:%Y-%m-%d %H:%M} UTC, the journal's last entry is of "
            f"{last:%Y-%m-%d %H:%M} UTC: {undone}. Set the clock; killing still works."
        )


def require_true_wall(clock: Clock, provider: str) -> None:
    """The wall clock agrees with the `Date` that this provider has answered with, if with any."""
    by_provider = clock.dated()
    if by_provider is None:
        return
    wall = datetime.fromtimestamp(wall_s(), UTC)
    ahead = wall - by_provider
    if abs(ahead) > CLOCK_SLACK:
        way = "ahead of" if ahead > timedelta() else "behind"
        raise UsageError(
            f"this machine's clock says {wall:%Y-%m-%d %H:%M:%S} UTC, which is "
            f"{timedelta(seconds=round(abs(ahead).total_seconds()))} {way} the time of {provider}: "
            "nothing was rented. Set the clock; killing still works."
        )


def require_room(places: Places) -> None:
    """Before anything is asked of a provider: a full disk cannot take the journal of a purchase."""
    root = places.root
    while not root.exists():
        root = root.parent
    if shutil.disk_usage(root).free < RESERVE_BYTES and not places.reserve.exists():
        raise _no_room(places, "no space left")


def _no_room(places: Places, why: str) -> UsageError:
    return UsageError(
        f"{places.root} has no room for the journal ({why}): nothing was rented. "
        "Free some space, or set GPURUN_HOME to another disk."
    )


def _keep_reserve(places: Places) -> None:
    """Room that is freed when the disk is full, so that an ending can still be written."""
    try:
        if not places.reserve.exists():
            partial = places.reserve.with_suffix(".tmp")
            partial.write_bytes(b"\0" * RESERVE_BYTES)
            with suppress(FileNotFoundError):  # another purchase has just put it there
                partial.replace(places.reserve)
    except OSError as error:
        raise _no_room(places, str(error.strerror)) from error


def _check_file_system(places: Places) -> None:
    """WAL and flock are not safe on a network file system."""
    kind = kind_of(places.root)
    if is_network(kind):
        raise UsageError(
            f"{places.root} lies on {kind}, where locks cannot be trusted: nothing was rented. "
            "Set GPURUN_HOME to a local disk."
        )
