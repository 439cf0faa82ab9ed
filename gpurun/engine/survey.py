"""What is here and what is out there, asked anew: `doctor` and `orphans`."""

import importlib.util
import shutil
from dataclasses import dataclass
from decimal import Decimal

from gpurun import keeper
from gpurun.clock import Clock, SystemClock
from gpurun.engine import checkup
from gpurun.engine.box import Box
from gpurun.engine.live import live_box
from gpurun.errors import GpurunError, ProviderError, UsageError
from gpurun.model import SETTLED, Instance
from gpurun.places import Places
from gpurun.provider import Containment
from gpurun.settings import Settings
from gpurun.store import Journal, StoreError
from gpurun.wiring import names, provisioner

LOW_DISK_GB = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `doctor`."""

    what: str
    says: str
    ok: bool


@dataclass(frozen=True, slots=True)
class Orphan:
    """An instance that no timer of this journal covers."""

    provider: str
    instance_id: str
    label: str
    usd_per_hour: Decimal | None


def doctor(settings: Settings) -> list[Finding]:
    """This machine, this journal, each provider; nothing is changed."""
    places, clock = Places(settings.state_dir), SystemClock()
    found = [_disk(places), _journal(places, clock), _keeper(places), _torch()]
    return found + [_provider(name, settings, clock) for name in names(settings)]


def doctor_of_box(run_id: str, settings: Settings) -> list[Finding]:
    """The box of a live run: what it is against what was ordered, and what a launch needs."""
    ctx, attempt = live_box(run_id, settings)
    box = Box(ctx, attempt, lambda _line: None)
    found = checkup.of_box(ctx, attempt, box.shell)
    return [Finding(f"box: {check.what}", check.says, check.ok) for check in found]


def orphans(settings: Settings, providers: list[str] | None = None) -> list[Orphan]:
    """What the accounts hold that no timer of ours covers; ProviderError if one cannot be asked."""
    clock = SystemClock()
    rows = [
        row
        for name in providers or names(settings)
        for row in provisioner(name, settings, clock).instances()
    ]
    covered = _covered(Places(settings.state_dir), clock, rows)
    return [
        Orphan(row.provider, row.id, row.label, row.usd_per_hour)
        for row in rows
        if row.label not in covered
    ]


def kill_orphan(provider: str, instance_id: str, settings: Settings) -> None:
    """End one instance that a human has named; refused for one that a timer covers."""
    named = [o for o in orphans(settings, [provider]) if o.instance_id == instance_id]
    if not named:
        raise UsageError(
            f"{provider} shows no orphan {instance_id}; `gpurun orphans` lists them, and a box of "
            "a run is ended by `gpurun kill RUN`"
        )
    cloud = provisioner(provider, settings, SystemClock())
    cloud.destroy(instance_id)
    if cloud.instance(instance_id) is not None:
        raise ProviderError(f"{provider} still shows {instance_id}; run `gpurun orphans` again")


def _covered(places: Places, clock: Clock, rows: list[Instance]) -> set[str]:
    if not places.database.exists():
        return set()
    ours = Journal(places.database, clock).attempts.find([row.label for row in rows])
    return {label for label, attempt in ours.items() if attempt.state not in SETTLED}


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
        trouble = journal.owner.trouble()
    except StoreError as error:
        return Finding("journal", str(error), False)
    return Finding("journal", trouble or str(places.database), not trouble)


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
    try:
        cloud = provisioner(name, settings, clock)
        says = f"account {cloud.account()}"
        if isinstance(cloud, Containment):
            says += f"; {cloud.containment()}"
    except GpurunError as error:
        return Finding(name, str(error), False)
    return Finding(name, says, True)
