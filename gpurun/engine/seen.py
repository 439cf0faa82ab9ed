"""What was asked for, as its provider shows it: UNCLEAR and R9 (protocol 3)."""

from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal

from gpurun.engine.context import Context
from gpurun.engine.limits import period_caps
from gpurun.errors import PhaseFailed, ProviderError, ProviderUnreachable
from gpurun.identity import age, twins_among
from gpurun.model import Attempt, Instance, InstanceState
from gpurun.timers import evidence_of

ASK_AGAIN_S = 2.0
PRICE_SLACK = Decimal("1.02")
SETTLE_FROM_SENT_S = 60.0
LISTINGS = (0, 2, 5, 10, 20, 40, 60, 90, 120)  # seconds; then every 30 s to the window's end


def resolve(ctx: Context, attempt: Attempt) -> Attempt | None:
    """UNCLEAR: look for the label until its window has passed; None is a ghost.

    Lists are read at growing distances; the last one begins after the window.
    """
    window_ends = _window_ends(ctx, attempt)
    looks, began_s = 0, ctx.clock.boot_s()
    ctx.journal.runs.event(ctx.run.id, "looking", f"for {attempt.label}", attempt.label)
    while True:
        asked_at = ctx.clock.now()
        try:
            account = ctx.cloud.account()
            sought = evidence_of(attempt, ctx.clock)
            rows = sorted((row for row in ctx.cloud.instances() if sought.is_of(row)), key=age)
        except ProviderError:
            rows, account = [], ""
        if account == attempt.account_id:
            looks += 1
            if rows:
                oldest = rows[0]
                made = ctx.journal.attempts.made
                its_own = made(attempt.label, oldest.id, "list", oldest.created_at)
                others = [row for row in rows if row.id != its_own]
                _end_twins(ctx, attempt, twins_among(others, attempt.sent_at))
                return ctx.journal.attempts.get(attempt.label)
            if looks >= 3 and asked_at > window_ends:
                ctx.journal.attempts.ghost(attempt.label)
                return None
        waited_s = ctx.clock.boot_s() - began_s
        ahead = [at_s for at_s in LISTINGS if at_s > waited_s]
        ctx.clock.sleep(min(ahead[0] - waited_s if ahead else 30.0, 30.0))


def _end_twins(ctx: Context, attempt: Attempt, twins: list[Instance]) -> None:
    """What one request has made more than once; an orphan that `orphans` shows, if it lives on."""
    for twin in twins:
        ctx.journal.runs.event(ctx.run.id, "twin", f"ending {twin.id}", attempt.label)
        with suppress(ProviderError):
            ctx.cloud.destroy(twin.id)


def look_at(ctx: Context, attempt: Attempt) -> None:
    """R9: the row must be what was bought; its price is the one that counts.

    PhaseFailed when it is not; ProviderError when it is not shown within its window.
    """
    row = _row(ctx, attempt)
    wrong = _misfits(row, attempt, ctx.budget.max_usd_per_hour)
    if not wrong:
        _follow_price(ctx, attempt, row)
    note(ctx, attempt.label, row)
    if wrong:
        raise PhaseFailed(f"{attempt.label} is not what was bought: {'; '.join(wrong)}")


def note(ctx: Context, label: str, row: Instance) -> None:
    """What its provider says of it; the price of a stopped box is not that of a running one."""
    rate = None if row.state is InstanceState.STOPPED else row.usd_per_hour
    ctx.journal.attempts.seen(label, row.created_at, rate)


def _follow_price(ctx: Context, attempt: Attempt, row: Instance) -> None:
    """W10: dearer than its offer, within what is allowed; its timer follows the money."""
    if row.usd_per_hour is not None and row.state is not InstanceState.STOPPED:
        caps = period_caps(ctx.settings, ctx.cloud.name, ctx.clock.now())
        traits = ctx.cloud.traits
        if timer := ctx.journal.prices.risen(attempt.label, row.usd_per_hour, traits, caps):
            dearer = ctx.journal.attempts.get(attempt.label)
            ctx.fact(lambda: ctx.trace(dearer, timer, dearer.state.value))


def _misfits(row: Instance, bought: Attempt, most: Decimal) -> list[str]:
    """In words; what a provider does not tell is what was bought."""
    found = []
    rate, quoted = row.usd_per_hour, bought.usd_per_hour
    if rate is not None and (rate > most or rate > quoted * PRICE_SLACK):
        found.append(f"it costs ${rate}/h, bought at ${quoted}/h with at most ${most}/h allowed")
    told = None not in (row.gpu, bought.gpu)  # GPUs that nobody has asked for do no harm
    if told and (row.gpu, row.gpu_count) != (bought.gpu, bought.gpu_count):
        found.append(f"{row.gpu_count}x {row.gpu} instead of {bought.gpu_count}x {bought.gpu}")
    return found


def _row(ctx: Context, attempt: Attempt) -> Instance:
    """Rows may lag behind a purchase; no answer at all says nothing of the box, and the setup timer
    bounds the wait for one.
    """
    assert attempt.instance_id is not None
    while True:
        with suppress(ProviderUnreachable):
            row = ctx.cloud.instance(attempt.instance_id)
            if row is not None and row.label == attempt.label:
                return row
            if ctx.clock.now() > _window_ends(ctx, attempt):
                raise ProviderError(
                    f"{attempt.provider} does not show {attempt.label}, which it has rented out"
                )
        ctx.clock.sleep(ASK_AGAIN_S)


def _window_ends(ctx: Context, attempt: Attempt) -> datetime:
    """How long what was sent may stay unseen (protocol 1)."""
    assert attempt.sent_at is not None
    window_s = SETTLE_FROM_SENT_S + ctx.cloud.traits.settle_window_s
    return attempt.sent_at + timedelta(seconds=window_s)
