"""What a run has been through: seconds and dollars by phase, its timers, what it left."""

from datetime import datetime
from decimal import Decimal
from typing import Any

from gpurun.budget import allocate_cents
from gpurun.glance import money
from gpurun.glance.reader import Reader, Row
from gpurun.glance.rows import Parts, instant, iso, parsed

FIRST = "rent"  # has no row of its own: it lasts from the order to the first phase on the box


def phases_of(reader: Reader, parts: Parts, now: datetime) -> list[dict[str, Any]]:
    """A phase that was gone through twice, on a second box, is one line."""
    rows = reader.rows("phases", "WHERE run_id = ? ORDER BY id", [parts.run["id"]])
    seconds = _seconds(parts, rows, now)
    usd = dict.fromkeys(seconds, Decimal(0))
    for row in parts.ledger:
        if row.get("kind") in ("accrue", "settle"):
            name = row.get("phase") or FIRST
            usd[name] = usd.get(name, Decimal(0)) + money.dollars(row.get("usd"))
    current = parts.run.get("phase") or FIRST
    unbooked = sum(money.unbooked_usd(parts, now).values(), Decimal(0))
    if unbooked:
        usd[current] = usd.get(current, Decimal(0)) + unbooked
    usd |= money.held_usd(parts)
    exact = money.spent_usd(parts, now)
    total = money.cents(exact)
    dearest = max(usd, key=lambda name: usd[name])
    usd[dearest] += total - exact  # rounded up: less than a cent
    shares = allocate_cents(usd, total)
    return [
        {"name": name, "seconds": round(seconds.get(name, 0.0), 1), "usd": f"{shares[name]:.2f}"}
        for name in usd
    ]


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
        "reserved_usd": str(money.cents(of("reserve", "release"))),
        "accrued_usd": str(money.cents(of("accrue") + unbooked_usd)),
        "tail_usd": str(money.cents(of("hold", phase="tail"))),
        "traffic_usd": str(money.cents(of("hold", phase="traffic"))),
        "awaited": bool(gone_at and not settled_at and of("hold")),
        "charged_usd": str(money.cents(of("accrue", "settle"))) if settled_at else None,
        "settled_at": iso(settled_at),
    }


def _seconds(parts: Parts, rows: list[Row], now: datetime) -> dict[str, float]:
    """By phase rows; where the engine writes none, by what was booked."""
    end = instant(parts.run.get("finished_at")) or now
    first = next((began for row in rows if (began := instant(row.get("began_at")))), end)
    began_at = instant(parts.run.get("created_at")) or first
    found = {FIRST: max(0.0, (first - began_at).total_seconds())}
    for row in rows:
        began, ended = instant(row.get("began_at")), instant(row.get("ended_at")) or end
        if began is not None:
            name = str(row.get("phase"))
            found[name] = found.get(name, 0.0) + max(0.0, (ended - began).total_seconds())
    with_rows = {FIRST, *(str(row.get("phase")) for row in rows)}
    for row in parts.ledger:
        phase, since, at = str(row.get("phase")), instant(row.get("since")), instant(row.get("at"))
        if row.get("kind") == "accrue" and phase not in with_rows and since and at:
            found[phase] = found.get(phase, 0.0) + (at - since).total_seconds()
    return found
