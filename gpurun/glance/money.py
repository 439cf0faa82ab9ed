"""What a run has cost, by the ledger and by the clock since the last booking.

Shown money is never below the provider's meter (I22): a box costs its all-in rate from the request
to the proof that it is gone, and from then on also what may be billed after it, until the provider
has said what it has charged.  Cents are rounded up.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import ROUND_CEILING, ROUND_HALF_UP, Decimal

from gpurun.budget import CENT, GHOST_RESERVE_S, allocate_cents, cost
from gpurun.glance.amounts import dollars as dollars
from gpurun.glance.reader import Row
from gpurun.glance.rows import Parts, instant, may_bill
from gpurun.marks import counted_holds
from gpurun.model import AttemptState

ZERO = Decimal(0)
FIRST = "rent"  # has no row of its own: it lasts from the order to the first phase on the box
KINDS = ("reserved", "accrued", "settled")
KIND = {"tail": "reserved", "traffic": "reserved", "settle": "settled"}  # of other phases: accrued
NEVER_BILLED = (AttemptState.INTENT, AttemptState.REFUSED, AttemptState.EXPIRED)


def spent_usd(parts: Parts, now: datetime) -> Decimal:
    return sum((sum(box.values(), ZERO) for box in by_box(parts, now).values()), ZERO)


def by_box(parts: Parts, now: datetime) -> dict[str, dict[str, Decimal]]:
    """By label and phase, exact: what was booked, what has been billed since then, and as `tail`
    and `traffic` what counts as spent although nobody has billed it.
    """
    found: dict[str, dict[str, Decimal]] = {row["label"]: {} for row in parts.attempts}

    def add(label: str, phase: str, usd: Decimal) -> None:
        box = found.setdefault(label, {})
        box[phase] = box.get(phase, ZERO) + usd

    for row in parts.ledger:
        if row.get("kind") in ("accrue", "settle"):
            add(str(row.get("label")), str(row.get("phase") or FIRST), dollars(row.get("usd")))
    for label, usd in unbooked_usd(parts, now).items():
        add(label, str(parts.run.get("phase") or FIRST), usd)
    for attempt in parts.attempts:
        if settled_at(parts, attempt) is None:
            for phase in counted_holds(attempt.get("state")):
                if usd := of_kind(parts, attempt["label"], "hold", phase):
                    add(attempt["label"], phase, usd)
    return found


def settled_at(parts: Parts, attempt: Row) -> datetime | None:
    """When the provider's own charge was last booked; None while that is still to come."""
    gone_at = instant(attempt.get("gone_at"))
    if gone_at is None:
        return None
    booked = [
        at
        for row in parts.ledger
        if row.get("kind") == "settle" and row.get("label") == attempt["label"]
        if (at := instant(row.get("at"))) and at >= gone_at
    ]
    return max(booked, default=None)


def of_kind(parts: Parts, label: str, kind: str, phase: str | None = None) -> Decimal:
    """What the ledger holds of this kind for one box."""
    return sum(
        (
            dollars(row.get("usd"))
            for row in parts.ledger
            if row.get("kind") == kind and row.get("label") == label
            if phase in (None, row.get("phase"))
        ),
        ZERO,
    )


def reserved_usd(parts: Parts, label: str) -> Decimal:
    """What is held for what a box may still cost, until it is proven gone."""
    return of_kind(parts, label, "reserve") + of_kind(parts, label, "release")


def unbooked_usd(parts: Parts, now: datetime) -> dict[str, Decimal]:
    """By label: what has been billed since the last booking, up to now or the box's end."""
    return {
        row["label"]: cost(dollars(row.get("usd_per_hour")), (until - since).total_seconds())
        for row in parts.attempts
        for since, until in [_unbooked(parts, row, now)]
        if since is not None and until > since
    }


def usd_per_hour(parts: Parts) -> Decimal | None:
    """Of everything of this run that bills now; when nothing does, what its last box cost."""
    billing = [row for row in parts.attempts if may_bill(row)] or parts.attempts[-1:]
    if not billing:
        return None
    return sum((dollars(row.get("usd_per_hour")) for row in billing), ZERO)


def add(to: dict[str, Decimal], more: Mapping[str, Decimal]) -> None:
    for name, usd in more.items():
        to[name] = to.get(name, ZERO) + usd


def in_cents(usd: Mapping[str, Decimal], total: Decimal | None = None) -> dict[str, Decimal]:
    """Whole cents for each, which sum to the total, or to the sum of all, rounded up."""
    exact = sum(usd.values(), ZERO)
    if not usd:
        return {}
    dearest = max(usd, key=lambda name: usd[name])
    whole = cents(exact) if total is None else total
    return allocate_cents({**usd, dearest: usd[dearest] + whole - exact}, whole)


def part_in_cents(
    part: Mapping[str, Decimal], whole: Mapping[str, Decimal], total: Decimal
) -> dict[str, Decimal]:
    """Of each whole, given in cents, the part in cents: never more; they sum to the total."""
    found = dict.fromkeys(whole, ZERO) | in_cents(part, total)
    spare = ZERO
    for name, usd in found.items():
        over = max(ZERO, usd - max(ZERO, whole[name]))
        found[name], spare = usd - over, spare + over
    for name in sorted(found, key=lambda name: found[name] - whole[name]):
        more = min(spare, max(ZERO, whole[name] - found[name]))
        found[name], spare = found[name] + more, spare - more
    return found


def columns(phase: str, usd: Decimal, wasted_usd: Decimal) -> dict[str, str]:
    """What a phase has cost, and of which kind that is: held for what may still be billed, accrued
    by the clock, or the difference to what the provider has charged.
    """
    kind = KIND.get(phase, "accrued")
    of_kind = {f"{each}_usd": usd if each == kind else ZERO for each in KINDS}
    found = {"usd": usd, **of_kind, "wasted_usd": wasted_usd}
    return {name: f"{amount:.2f}" for name, amount in found.items()}


def share(part: Decimal, whole: Decimal) -> float | None:
    """0 to 1; None of nothing."""
    return round(float(part / whole), 4) if whole > 0 else None


def nearest(amount: Decimal) -> Decimal:
    return amount.quantize(CENT, rounding=ROUND_HALF_UP)


def cents(amount: Decimal) -> Decimal:
    return amount.quantize(CENT, rounding=ROUND_CEILING)


def rate_text(amount: Decimal | None) -> str | None:
    """Every digit of a rate, two at least."""
    if amount is None:
        return None
    return format(amount if -int(amount.as_tuple().exponent) >= 2 else amount.quantize(CENT), "f")


def _unbooked(parts: Parts, attempt: Row, now: datetime) -> tuple[datetime | None, datetime]:
    sent_at, gone_at = instant(attempt.get("sent_at")), instant(attempt.get("gone_at"))
    until = gone_at or now
    if sent_at is None or attempt.get("state") in NEVER_BILLED:
        return None, until
    if attempt.get("state") == AttemptState.GHOST:  # perhaps nothing: no more than is reserved
        until = min(until, sent_at + timedelta(seconds=GHOST_RESERVE_S))
    booked = [
        booked_at
        for row in parts.ledger
        if row.get("kind") == "accrue" and row.get("label") == attempt["label"]
        if (booked_at := instant(row.get("at")))
    ]
    return max([sent_at, *booked]), until
