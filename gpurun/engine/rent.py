"""RENT (protocol 3): the only place that calls `create`."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal

from gpurun import budget as money
from gpurun import guards
from gpurun.engine.context import Context
from gpurun.engine.guarding import last_words
from gpurun.engine.limits import caps_of
from gpurun.engine.needs import fitting, need_of
from gpurun.engine.seen import PRICE_SLACK, note
from gpurun.errors import (
    AccountRefused,
    BudgetError,
    CreateFailedButMade,
    NoCapacity,
    NoOffer,
    ProviderError,
    UsageError,
)
from gpurun.keeper.client import acknowledged, listening
from gpurun.model import (
    Attempt,
    AttemptState,
    Ending,
    Offer,
    Order,
)
from gpurun.signals import held
from gpurun.store.owner import random_id
from gpurun.timers import timer_for
from gpurun.trust import require_true_wall

MAX_ATTEMPTS = 5
SEND_WITHIN_S = 5.0
ACK_WITHIN_S = 5.0


def rent(ctx: Context, say: Callable[[str], None]) -> Attempt:
    """R1-R7: an attempt that exists at the provider, or may; or raises with nothing rented.

    An offer that is gone is followed by the next; what is wrong with the account ends it.
    """
    while True:
        try:
            return _rent(ctx.bound())
        except AccountRefused:
            raise
        except NoCapacity as error:
            if len(_tried(ctx)) >= MAX_ATTEMPTS or not offers_left(ctx):
                raise
            say(f"{error}; trying the next offer")


def offers_left(ctx: Context) -> list[Offer]:
    """What fits and was not tried by this run; of an offer that was asked for by name, no other."""
    tried, found = _tried(ctx), ctx.cloud.offers(need_of(ctx.recipe))
    fit = fitting(found, ctx.recipe, ctx.options.get("offer_id"))
    return [offer for offer in fit if offer.id not in tried]


def _tried(ctx: Context) -> set[str]:
    return {attempt.offer_id for attempt in ctx.journal.attempts.of_run(ctx.run.id)}


def _rent(ctx: Context) -> Attempt:
    tried = ctx.journal.attempts.of_run(ctx.run.id)
    if len(tried) >= MAX_ATTEMPTS:
        raise NoCapacity(f"run {ctx.run.id}: {MAX_ATTEMPTS} offers were tried and none worked")
    if blocked := [a for a in tried if _blocks_next(a)]:
        raise ProviderError(
            f"{blocked[0].label} is not yet acknowledged as ended: no other offer is bought. "
            f"`gpurun status {ctx.run.id}` shows it"
        )
    if trouble := ctx.journal.owner.trouble():
        raise UsageError(f"nothing was rented: {trouble}.")
    account = ctx.cloud.account()  # it brings the provider's time; the keeper's beat is by ours
    if account != (planned := ctx.options.get("account_id", account)):
        raise UsageError(
            f"the plan was made for {ctx.cloud.name} account {planned}, and the key in use now is "
            f"that of account {account}: nothing was rented. Run `gpurun up` again."
        )
    require_true_wall(ctx.clock, ctx.cloud.name)
    listening(ctx.places, ctx.journal, ctx.cloud, ctx.clock)  # R1
    offer = _offer_now(ctx)  # R2
    held = sorted(row.id for row in ctx.cloud.instances())
    ctx.journal.runs.event(ctx.run.id, "before", " ".join(held))
    attempt = _intend(ctx, offer)  # R3, R4
    return _send(ctx, attempt, offer)  # R5-R7


def _blocks_next(attempt: Attempt) -> bool:
    if attempt.state in (AttemptState.REFUSED, AttemptState.GHOST, AttemptState.EXPIRED):
        return False
    return attempt.state is not AttemptState.GONE and attempt.delete_acked_at is None


def _offer_now(ctx: Context) -> Offer:
    offers = offers_left(ctx)
    if not offers:
        raise NoOffer(f"{ctx.cloud.name} has no offer left that fits; see `gpurun offers`")
    offer = offers[0]
    planned = Decimal(ctx.options.get("usd_per_hour", "0"))
    if not _tried(ctx) and offer.usd_per_hour > planned * PRICE_SLACK:
        raise BudgetError(
            f"offer {offer.id} now costs ${offer.usd_per_hour}/h, the plan said ${planned}/h: "
            "nothing was rented. Run `gpurun up` again to see the new plan."
        )
    money.check_price(offer, ctx.budget)
    return offer


def _intend(ctx: Context, offer: Offer) -> Attempt:
    owner_id, _machine = ctx.journal.owner.ensure()
    label = f"gpurun-{owner_id}-{ctx.run.id}-{random_id(6)}"
    traits = ctx.cloud.traits
    now = ctx.clock.now()
    traffic_usd = money.traffic_usd(offer)
    committed = ctx.journal.ledger.committed_usd(ctx.run.id) + traffic_usd
    ends = money.setup_timer(now, ctx.budget, offer.usd_per_hour, traits, committed)
    timer = timer_for(label, 1, "setup", ends.fires_at, ends.ends_at, ctx.clock)
    attempt = Attempt(
        label=label,
        run_id=ctx.run.id,
        provider=ctx.cloud.name,
        account_id=ctx.cloud.account(),
        offer_id=offer.id,
        usd_per_hour=offer.usd_per_hour,
        ceiling_at=ends.ceiling_at,
        state=AttemptState.INTENT,
        ending=None,
        gpu=offer.gpu,
        gpu_count=offer.gpu_count,
        sent_at=None,
        instance_id=None,
        id_from=None,
        first_seen_at=None,
        created_at=None,
        delete_acked_at=None,
        gone_at=None,
        evidence_json="{}",
    )
    caps = caps_of(ctx.settings, ctx.budget, ctx.cloud.name, now, offer.usd_per_hour, traffic_usd)
    reserve = money.reserve(ctx.budget, offer.usd_per_hour, now, ends, traits, committed)
    ctx.journal.attempts.intend(attempt, timer, guards.wanted(ctx.cloud), reserve, caps, ctx.epoch)
    ctx.journal.ledger.hold(label, traits.tail_s, traffic_usd)
    try:
        ctx.trace(attempt, timer, "intent")
    except OSError as error:
        ctx.journal.attempts.refused(label, f"the black box cannot be written: {error}")
        raise UsageError(
            f"{ctx.places.blackbox} cannot be written ({error}): nothing was rented"
        ) from error
    if not acknowledged(ctx.journal, timer, ctx.clock, ACK_WITHIN_S):
        ctx.journal.attempts.refused(label, "the keeper did not acknowledge the timer")
        raise ProviderError(
            "the keeper did not acknowledge the timer within 5 s: nothing was rented. "
            f"See {ctx.places.keeper_log}, then run `gpurun keeper start`."
        )
    return attempt


def _send(ctx: Context, attempt: Attempt, offer: Offer) -> Attempt:
    attempts = ctx.journal.attempts
    timer = ctx.journal.timers.of(attempt.label)
    assert timer is not None
    order = Order(
        offer=offer,
        need=need_of(ctx.recipe),
        label=attempt.label,
        fires_at=timer.fires_at,
        ends_at=timer.ends_at,
        max_usd_per_hour=ctx.budget.max_usd_per_hour,
        fuse_script=guards.from_start(ctx.cloud, attempt.label, last_words()),
    )
    with held():
        began_s = ctx.clock.boot_s()
        attempts.sending(attempt.label, ctx.epoch)
        sent = attempts.get(attempt.label)
        try:
            ctx.trace(sent, timer, "sending")
        except OSError as error:
            attempts.refused(attempt.label, f"the black box cannot be written: {error}")
            raise UsageError(
                f"{ctx.places.blackbox} cannot be written ({error}): nothing was rented"
            ) from error
        if ctx.clock.boot_s() - began_s > SEND_WITHIN_S:
            attempts.refused(attempt.label, "this process was stopped before the request left")
            ctx.fact(lambda: ctx.trace(sent, timer, "refused"))
            raise ProviderError(
                f"{attempt.label}: this process was stopped before the request left; nothing was "
                "rented. Run `gpurun up` again."
            )
        try:
            created = ctx.cloud.create(order)
        except NoCapacity as error:
            attempts.refused(attempt.label, str(error))
            ctx.fact(lambda: ctx.trace(sent, timer, "refused"))
            raise
        except CreateFailedButMade as error:
            attempts.made(attempt.label, error.instance_id, "answer")
            with suppress(ProviderError):  # it may cost more than was bought
                if row := ctx.cloud.instance(error.instance_id):
                    note(ctx, attempt.label, row)
            ctx.journal.endings.end_attempt(attempt.label, Ending.FAILED, str(error))
            raise
        except Exception as error:  # whatever else happened: it may exist
            attempts.unclear(attempt.label, str(error))
        else:
            made = replace(sent, instance_id=created.instance_id, state=AttemptState.MADE)
            ctx.fact(lambda: ctx.trace(made, timer, "made"))  # the id is nowhere else yet
            attempts.made(attempt.label, created.instance_id, "answer")
        return attempts.get(attempt.label)
