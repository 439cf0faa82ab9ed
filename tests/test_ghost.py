"""A create whose answer was lost, and whose box is listed only long after its window (F2).

The keeper's rounds are real, over a real journal; the cloud is an emulated one, whose meter says
what the box came to.  What its time is, a test decides.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from gpurun import glance
from gpurun.blackbox import BlackBox
from gpurun.clock import Deadline
from gpurun.errors import CreateUnclear
from gpurun.keeper.daemon import Keeper
from gpurun.model import AttemptState, Ending, Order
from gpurun.places import Places
from gpurun.settings import Settings
from gpurun.store.ledger import Caps
from gpurun.store.owner import machine_hash
from tests.billed import NEED, Life, life

LISTED_AFTER_S = 900
WINDOW_S = {"vast": 180, "prime": 660}  # of settling, counted from a minute after it was sent
ENDS_WITHIN_S = 60  # of the first list that has it


@pytest.fixture(params=["vast", "prime"])
def ghost(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Life]:
    with haunted(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def at_prime(tmp_path: Path) -> Iterator[Life]:
    with haunted("prime", tmp_path) as made:
        yield made


@contextmanager
def haunted(provider: str, home: Path) -> Iterator[Life]:
    """It was looked for until its window had passed, and has failed its run."""
    with life(provider, home) as made:
        market, journal = made.market, made.story.journal
        market.fault("list_lag_s", seconds=LISTED_AFTER_S)
        market.fault("answer_lost")
        order = intended(made)
        with pytest.raises(CreateUnclear):
            made.cloud.create(order)
        journal.attempts.unclear(order.label, "no answer")
        made.passes(WINDOW_S[provider])
        assert made.cloud.instances() == []
        journal.attempts.ghost(order.label)
        journal.endings.end_run(made.story.run_id, Ending.FAILED, "it never appeared", 0)
        yield made


def intended(made: Life) -> Order:
    """As the engine writes it before it sends."""
    made.nonce += 1
    story, label = made.story, made.label
    offer = next(iter(made.cloud.offers(NEED)))
    end = made.clock.now() + timedelta(minutes=41)
    attempt = replace(
        story.attempt(),
        label=label,
        account_id=made.cloud.account(),
        usd_per_hour=offer.usd_per_hour,
        ceiling_at=end,
    )
    timer = replace(story.timer(1, 40), label=label)
    attempts = story.journal.attempts
    attempts.intend(attempt, timer, [], Decimal(9), Caps(run_usd=Decimal(90)), story.epoch)
    attempts.sending(label, story.epoch)
    return Order(offer, NEED, label, end, end, offer.usd_per_hour * 2)


def keeper_of(made: Life) -> Keeper:
    places = Places(made.home)
    owner_id, _machine = made.story.journal.owner.ensure()
    blackbox = BlackBox(places.blackbox, owner_id, machine_hash())
    settings, journal = Settings.model_construct(), made.story.journal
    return Keeper(places, settings, made.clock, journal, blackbox, lambda _name: made.cloud)


def ticks(keeper: Keeper, made: Life, seconds: int, apart_s: int = 5) -> None:
    for _ in range(seconds // apart_s):
        made.passes(apart_s)
        keeper.tick()
        deadline = Deadline(60, poll_s=0.005)
        while keeper.working():
            assert not deadline.passed()


def alive(made: Life) -> bool:
    return any(line.alive for line in made.market.meter().instances)


def test_it_is_asked_to_end_within_a_minute_of_being_listed(ghost: Life) -> None:
    keeper, attempts = keeper_of(ghost), ghost.story.journal.attempts
    ticks(keeper, ghost, LISTED_AFTER_S - WINDOW_S[ghost.market.world.provider] - 10)
    assert attempts.get(ghost.label).state is AttemptState.GHOST
    assert alive(ghost), "it bills, and no list has it yet"
    ticks(keeper, ghost, 10 + ENDS_WITHIN_S - 5)
    assert ghost.market.world.asked["destroy"] > 0
    ticks(keeper, ghost, 120)
    assert not alive(ghost)
    assert attempts.get(ghost.label).state is AttemptState.GONE
    [line] = ghost.market.meter().instances
    assert ghost.shown_usd() >= line.billed_usd > 0, "its cost is in the ledger"


@pytest.mark.parametrize("later_s", range(0, 60, 15))
def test_it_is_so_whenever_it_was_looked_for_last(at_prime: Life, later_s: int) -> None:
    """Each look in vain is further from the next one."""
    keeper = keeper_of(at_prime)
    at_prime.passes(later_s)
    ticks(keeper, at_prime, LISTED_AFTER_S - WINDOW_S["prime"] - later_s)
    asked = at_prime.market.world.asked
    assert asked["destroy"] == 0
    ticks(keeper, at_prime, ENDS_WITHIN_S - 5)
    assert asked["destroy"] > 0


def test_what_it_may_cost_is_shown_all_the_while(ghost: Life) -> None:
    document = glance.run_document(ghost.home, ghost.story.run_id, ghost.clock.now())
    assert Decimal(document["spent_usd"]) > 0
    assert ghost.shown_usd() >= sum(line.billed_usd for line in ghost.market.meter().instances)
