"""What a run has been through: seconds and dollars by phase, its timers, what it left."""

from datetime import datetime
from decimal import Decimal
from typing import Any

from gpurun.glance import money, waste
from gpurun.glance.reader import Reader, Row
from gpurun.glance.rows import Parts, instant, iso, parsed

FIRST = money.FIRST


def spending_of(reader: Reader, parts: Parts, now: datetime) -> dict[str, Any]:
    """The phases with their seconds and dollars, in order, and what of it was wasted.

    A phase that was gone through twice, on a second box, is one item.
    """
    rows = reader.rows("phases", "WHERE run_id = ? ORDER BY id", [parts.run["id"]])
    boxes = waste.spent(parts, now)
    seconds = _seconds(parts, rows, now)
    if idle_s := min(waste.idle(parts)[1], seconds.get(waste.TRAIN, 0.0)):
        seconds[waste.TRAIN] -= idle_s
        seconds = _after(seconds, waste.TRAIN, waste.IDLE, idle_s)
    usd = dict.fromkeys(seconds, Decimal(0))
    wasted: dict[str, Decimal] = {}
    for label, box in boxes.items():
        money.add(usd, box)
        money.add(wasted, waste.wasted_in(parts, label, box))
    shares = money.in_cents(usd)
    total_usd = sum(shares.values(), Decimal(0))
    in_all = waste.document(parts, boxes, total_usd)
    of_it = money.part_in_cents(wasted, shares, Decimal(in_all["usd"]))
    return {
        "phases": [
            {
                "name": name,
                "seconds": round(seconds.get(name, 0.0), 1),
                **money.columns(name, shares[name], of_it[name]),
            }
            for name in usd
        ],
        "wasted": in_all,
    }


def timers_of(parts: Parts) -> list[dict[str, Any]]:
    """Every timer of every box of the run, the oldest first."""
    return [
        {
            "label": attempt["label"],
            "seq": row["seq"],
            "kind": row.get("kind"),
            "state": row.get("state"),
            "fires_at": iso(instant(row.get("fires_at"))),
            "ends_at": iso(instant(row.get("ends_at"))),
            "acked_at": iso(instant(row.get("acked_at"))),
            "fired_at": iso(instant(row.get("fired_at"))),
            "fired_by": row.get("fired_by"),
        }
        for attempt in parts.attempts
        for row in parts.timers[attempt["label"]]
    ]


def bills_of(parts: Parts, now: datetime) -> list[dict[str, Any]]:
    """Of every box that has billed, or may: what was reserved, accrued and charged."""
    unbooked = money.unbooked_usd(parts, now)
    return [
        _bill(parts, attempt, unbooked.get(attempt["label"], Decimal(0)))
        for attempt in parts.attempts
        if instant(attempt.get("sent_at")) and attempt.get("state") not in money.NEVER_BILLED
    ]


def artifacts(run: Row) -> list[dict[str, Any]]:
    return [
        {"path": item.get("path"), "bytes": item.get("bytes"), "sha256": item.get("sha256")}
        for item in parsed(run.get("collected_json"), [])
        if isinstance(item, dict)
    ]


def _bill(parts: Parts, attempt: Row, unbooked_usd: Decimal) -> dict[str, Any]:
    def of(*kinds: str, phase: str | None = None) -> Decimal:
        each = (money.of_kind(parts, attempt["label"], kind, phase) for kind in kinds)
        return sum(each, Decimal(0))

    gone_at, settled_at = instant(attempt.get("gone_at")), money.settled_at(parts, attempt)
    return {
        "label": attempt["label"],
        "provider": attempt.get("provider"),
        "instance_id": attempt.get("instance_id"),
        "gone_at": iso(gone_at),
        "reserved_usd": str(money.cents(money.reserved_usd(parts, attempt["label"]))),
        "accrued_usd": str(money.cents(of("accrue") + unbooked_usd)),
        "tail_usd": str(money.cents(of("hold", phase="tail"))),
        "traffic_usd": str(money.cents(of("hold", phase="traffic"))),
        "awaited": bool(gone_at and not settled_at and of("hold")),
        "charged_usd": str(money.cents(of("accrue", "settle"))) if settled_at else None,
        "settled_at": iso(settled_at),
    }


def _after(found: dict[str, float], name: str, new: str, seconds: float) -> dict[str, float]:
    """With another item behind the one of this name."""
    return {
        key: value
        for each, old in found.items()
        for key, value in ((each, old), *(((new, seconds),) if each == name else ()))
    }


def _seconds(parts: Parts, rows: list[Row], now: datetime) -> dict[str, float]:
    """As long as was booked, or by phase rows where that is more: of what is not booked yet, and
    of what bills nothing.  A row that a killed driver left open lasts until the next one.
    """
    end = instant(parts.run.get("finished_at")) or now
    begun = [began for row in rows if (began := instant(row.get("began_at")))]
    first = min(begun, default=end)
    began_at = instant(parts.run.get("created_at")) or first
    found = {FIRST: max(0.0, (first - began_at).total_seconds())}
    for row in rows:
        if (began := instant(row.get("began_at"))) is not None:
            following = min((at for at in begun if at > began), default=end)
            ended = instant(row.get("ended_at")) or following
            name = str(row.get("phase"))
            found[name] = found.get(name, 0.0) + max(0.0, (ended - began).total_seconds())
    booked: dict[str, float] = {}
    for row in parts.ledger:
        since, at = instant(row.get("since")), instant(row.get("at"))
        if row.get("kind") == "accrue" and since and at:
            name = str(row.get("phase") or FIRST)
            booked[name] = booked.get(name, 0.0) + max(0.0, (at - since).total_seconds())
    for name, seconds in booked.items():
        found[name] = max(found.get(name, 0.0), seconds)
    return found
