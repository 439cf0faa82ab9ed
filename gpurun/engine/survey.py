"""What is here and what is out there, asked anew: `doctor`."""

import importlib.util
import shutil
from dataclasses import dataclass

from gpurun import keeper
from gpurun.atonce import ask_each
from gpurun.clock import Clock, SystemClock
from gpurun.engine import checkup
from gpurun.engine.box import Box
from gpurun.engine.live import live_box
from gpurun.places import Places
from gpurun.provider import Containment
from gpurun.settings import Settings
from gpurun.store import Journal, StoreError
from gpurun.store.cells import damaged
from gpurun.wiring import CLOUDS, names, provisioner

LOW_DISK_GB = 5
ANSWER_WITHIN_S = 15.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `doctor`."""

    what: str
    says: str
    ok: bool


def doctor(settings: Settings) -> list[Finding]:
    """This machine, this journal, each provider but the clouds; nothing is changed.

    How the user stands with the clouds is said by gpurun/standing.py.
    """
    places, clock = Places(settings.state_dir), SystemClock()
    found = [_disk(places), _journal(places, clock), _keeper(places), _torch()]
    others = [name for name in names(settings) if name not in CLOUDS]
    for heard in ask_each(
        others, lambda name: _provider(name, settings, clock), clock, ANSWER_WITHIN_S
    ):
        found.append(heard.answer or Finding(heard.provider, str(heard.trouble), False))
    return found


def doctor_of_box(run_id: str, settings: Settings) -> list[Finding]:
    """The box of a live run: what it is against what was ordered, and what a launch needs."""
    ctx, attempt = live_box(run_id, settings)
    box = Box(ctx, attempt, lambda _line: None)
    found = checkup.of_box(ctx, attempt, box.shell)
    return [Finding(f"box: {check.what}", check.says, check.ok) for check in found]


def _disk(places: Places) -> Finding:
    root = places.root
    while not root.exists():
        root = root.parent
    free_gb = shutil.disk_usage(root).free / 1e9
    return Finding("disk", f"{free_gb:.0f} GB free at {places.root}", free_gb >= LOW_DISK_GB)


def _journal(places: Places, clock: Clock) -> Finding:
    if not places.database.exists():
        return Finding("journal", f"none yet; `gpurun up` makes {places.database}", True)
    try:
        journal = Journal(places.database, clock)
        journal.database.require_current()
        trouble = journal.owner.trouble() or _damage(journal)
    except StoreError as error:
        return Finding("journal", str(error), False)
    return Finding("journal", trouble or str(places.database), not trouble)


def _damage(journal: Journal) -> str:
    bad = "; ".join(map(str, damaged(journal.database)))
    return f"{bad}. A running keeper puts right what it can" if bad else ""


def _keeper(places: Places) -> Finding:
    pid = keeper.running(places)
    if pid is None:
        return Finding("keeper", "not running; `gpurun up` starts it", True)
    return Finding("keeper", f"running, pid {pid}", True)


def _torch() -> Finding:
    spec = importlib.util.find_spec("torch")
    where = "of this Python, used by local boxes" if spec else "none here; local boxes install it"
    return Finding("torch", where, True)


def _provider(name: str, settings: Settings, clock: Clock) -> Finding:
    cloud = provisioner(name, settings, clock)
    says = f"account {cloud.account()}"
    if isinstance(cloud, Containment):
        says += f"; {cloud.containment()}"
    return Finding(name, says, True)
