"""What the runs of some time have cost: by recipe, by provider, by GPU, and by phase.

Thousands of runs in one look: the ledger is summed by SQLite, exactly, to one row for each phase
of each box; to all that counts money by its rows that is one booking.  Runs are those that lived
in that time, if only for a part of it, with all that they have cost: what was spent is never less.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from gpurun.glance import money, waste
from gpurun.glance.reader import Reader, Row
from gpurun.glance.rows import Parts, instant, iso

ZERO = Decimal(0)
PHASES = (
    "rent", "boot", "accept", "ship", "setup", "data", "verify", "arm", "train", "idle", "keep",
    "collect", "destroy", "tail", "traffic", "settle",
)  # fmt: skip
BY = ("recipe", "provider", "gpu")
RUN = ("id", "recipe_name", "provider", "phase", "ending", "progress_json")
BOX = (
    "label", "run_id", "provider", "usd_per_hour", "state", "gpu", "gpu_count", "sent_at",
    "gone_at",
)  # fmt: skip
LIVED = "(finished_at IS NULL OR finished_at >= ?)"
THESE = f"IN (SELECT id FROM runs WHERE {LIVED})"
BOOKED = """run_id, label, kind, phase, exact_sum(usd) AS usd,
    MAX(CASE WHEN typeof(at) IN ('real', 'integer') THEN at END) AS at"""
GROUPED = f"""WHERE run_id {THESE}
    GROUP BY run_id, label, kind, phase"""


@dataclass(frozen=True, slots=True)
class _Box:
    """One box; of a run that never had one, nobody's."""

    run_id: str
    recipe: str
    provider: str
    gpu: str
    seconds: float
    usd: Mapping[str, Decimal]  # by phase
    wasted: Mapping[str, Decimal]  # of it
    reserved_usd: Decimal  # beyond what it has cost


@dataclass(slots=True)
class _Sum:
    runs: set[str] = field(default_factory=set)
    seconds: float = 0.0
    usd: dict[str, Decimal] = field(default_factory=dict)
    wasted: dict[str, Decimal] = field(default_factory=dict)
    reserved_usd: Decimal = ZERO

    def add(self, box: _Box) -> None:
        self.runs.add(box.run_id)
        self.seconds += box.seconds
        self.reserved_usd += box.reserved_usd
        money.add(self.usd, box.usd)
        money.add(self.wasted, box.wasted)

    @property
    def total_usd(self) -> Decimal:
        return sum(self.usd.values(), ZERO)

    @property
    def wasted_usd(self) -> Decimal:
        return sum(self.wasted.values(), ZERO)


def since_document(reader: Reader, since: datetime, now: datetime) -> dict[str, Any]:
    boxes = [box for parts in _runs(reader, since) for box in _boxes(parts, now)]
    total = _summed(boxes, lambda box: "")
    everything = total.get("", _Sum())
    usd = money.cents(everything.total_usd)
    wasted_usd = min(money.nearest(everything.wasted_usd), usd)
    return {
        "since": iso(since),
        "until": iso(now),
        **_shown(everything, usd, wasted_usd),
        **{f"by_{by}": _groups(_summed(boxes, _key(by)), usd, wasted_usd) for by in BY},
    }


def _runs(reader: Reader, since: datetime) -> list[Parts]:
    """With no timers and guards, and the ledger summed up."""
    when = [since.timestamp()]
    found = {
        str(row["id"]): Parts(row)
        for row in reader.some(RUN, "runs", f"WHERE {LIVED} ORDER BY created_at", when)
    }
    # Only of what failed it matters whether there was anything to train.
    failed = f"WHERE id {THESE} AND ending = 'failed'"
    for row in reader.some(("id", "recipe_json"), "runs", failed, when):
        found[str(row["id"])].run["recipe_json"] = row.get("recipe_json")
    of_these = f"WHERE run_id {THESE} ORDER BY rowid"
    for row in reader.some(BOX, "instances", of_these, when):
        found[str(row["run_id"])].attempts.append(row)
    if reader.some(("id",), "ledger", "LIMIT 1"):
        for row in reader.select(BOOKED, "ledger", GROUPED, when):
            found[str(row["run_id"])].ledger.append(row)
    return list(found.values())


def _boxes(parts: Parts, now: datetime) -> Iterable[_Box]:
    run, attempts = parts.run, {row["label"]: row for row in parts.attempts}
    recipe, provider = str(run.get("recipe_name")), str(run.get("provider"))
    spent = waste.spent(parts, now)
    if not spent:
        yield _Box(run["id"], recipe, provider, "", 0.0, {}, {}, ZERO)
    for label, usd in spent.items():
        row = attempts.get(label, {})
        yield _Box(
            run_id=run["id"],
            recipe=recipe,
            provider=str(row.get("provider") or provider),
            gpu=_gpu(row),
            seconds=_seconds(row, now),
            usd=usd,
            wasted=waste.wasted_in(parts, label, usd),
            reserved_usd=money.reserved_usd(parts, label),
        )


def _summed(boxes: Iterable[_Box], key: Callable[[_Box], str]) -> dict[str, _Sum]:
    found: dict[str, _Sum] = {}
    for box in boxes:
        found.setdefault(key(box), _Sum()).add(box)
    return found


def _key(by: str) -> Callable[[_Box], str]:
    return lambda box: str(getattr(box, by))


def _groups(groups: Mapping[str, _Sum], usd: Decimal, wasted_usd: Decimal) -> list[dict[str, Any]]:
    """The dearest first; they sum to the total, to the cent."""
    by_group = money.in_cents({name: each.total_usd for name, each in groups.items()}, usd)
    wasted_by = {name: each.wasted_usd for name, each in groups.items()}
    wasted = money.part_in_cents(wasted_by, by_group, wasted_usd)
    dearest_first = sorted(groups, key=lambda name: (-by_group[name], name))
    return [
        {"name": name or None, **_shown(groups[name], by_group[name], wasted[name])}
        for name in dearest_first
    ]


def _shown(group: _Sum, usd: Decimal, wasted_usd: Decimal) -> dict[str, Any]:
    phases = money.in_cents(group.usd, usd)
    wasted = money.part_in_cents(group.wasted, phases, wasted_usd)
    known = [phase for phase in PHASES if phase in phases]
    others = [phase for phase in phases if phase not in PHASES]
    return {
        "runs": len(group.runs),
        "hours": round(group.seconds / 3600, 2),
        "reserved_usd": f"{money.cents(group.reserved_usd):.2f}",
        "usd": f"{usd:.2f}",
        "wasted_usd": f"{wasted_usd:.2f}",
        "wasted_share": money.share(wasted_usd, usd),
        "phases": [
            {"name": name, **money.columns(name, phases[name], wasted[name])}
            for name in [*known, *others]
        ],
    }


def _gpu(row: Row) -> str:
    return f"{row.get('gpu_count')}x {row['gpu']}" if row.get("gpu") else ""


def _seconds(row: Row, now: datetime) -> float:
    """From the request until it was proven gone, or now; of what never billed, none."""
    sent_at = instant(row.get("sent_at"))
    if sent_at is None or row.get("state") in money.NEVER_BILLED:
        return 0.0
    return max(0.0, ((instant(row.get("gone_at")) or now) - sent_at).total_seconds())
