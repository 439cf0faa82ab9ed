"""Many boxes of one Vast account that end together: one request, or one every three seconds."""

import time
from datetime import timedelta

import pytest

from gpurun import web
from gpurun.clock import Deadline, SystemClock
from gpurun.errors import ProviderError, ProviderUnreachable
from gpurun.keeper.charges import Charge
from gpurun.keeper.rounds import Rounds
from gpurun.provider import EndsMany
from provisioners.vast import Vast
from provisioners.vast.limits import ENDPOINTS
from tests.clouds.serve import Cloud
from tests.clouds.vast.renter import Renter

SIZE = 3


@pytest.fixture
def rented(market: Cloud) -> list[str]:
    renter = Renter(market)
    offers = renter.search()
    return [
        str(renter.rent(ask_id=offer["id"], label=f"gpurun-o-r{number}-n"))
        for number, offer in enumerate(offers[:SIZE])
    ]


def test_one_request_ends_them_all(market: Cloud, vast: Vast, rented: list[str]) -> None:
    assert isinstance(vast, EndsMany)
    vast.destroy_many(rented[1:])
    assert [row.id for row in vast.instances()] == rented[:1]
    last = market.world.account.audit[-1]
    assert (last["api_route"], last["args"]) == (
        "DELETE /api/v0/instances/",
        {"instance_ids": [int(each) for each in rented[1:]]},
    )


@pytest.mark.parametrize(
    ("fault", "what"),
    [("server_error", ProviderUnreachable), ("auth_404", ProviderError)],
)
def test_what_is_not_plainly_a_yes_is_none(
    market: Cloud, vast: Vast, rented: list[str], fault: str, what: type[ProviderError]
) -> None:
    market.fault(fault, endpoint="destroy")
    with pytest.raises(what):
        vast.destroy_many(rented)


@pytest.mark.parametrize(("listed", "within_s"), [(True, (2, 2, 2)), (False, (2, 5, 8))])
def test_each_is_asked_for_in_time(
    market: Cloud, rented: list[str], listed: bool, within_s: tuple[float, ...]
) -> None:
    """F36: the first within 2 s; those that must be looked at before, 3 s after each other."""
    clock, ended_s = SystemClock(), []

    class Timed(Vast):
        def destroy(self, instance_id: str) -> None:
            super().destroy(instance_id)
            ended_s.append(time.monotonic() - began_s)

        def destroy_many(self, instance_ids: object) -> None:
            super().destroy_many(instance_ids)
            ended_s.extend([time.monotonic() - began_s] * SIZE)

    http = web.client("vast", market.url, market.api_key, ENDPOINTS, clock)
    vast = Timed(http, clock)
    account, now = vast.account(), clock.now()
    rounds = Rounds(lambda _name: vast, clock, lambda *_: None, lambda *_: listed)
    began_s = time.monotonic()
    for number, instance_id in enumerate(rented):
        label, soon = f"gpurun-o-r{number}-n", now + timedelta(minutes=1)
        rounds.step(Charge(label, "vast", account, instance_id, 1, soon, soon, None, None))
    rounds.begin()
    deadline = Deadline(20)
    while len(ended_s) < SIZE and not deadline.passed():
        pass
    assert len(ended_s) == SIZE
    assert all(took <= most for took, most in zip(ended_s, within_s, strict=True)), ended_s
