"""Vast's own scheduler as a guard: when it fires, what it is read to hold, what it costs."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from gpurun.errors import ProviderError, TimerRefused
from gpurun.provider import ProviderTimer
from provisioners.vast import Vast, jobs
from tests.clouds.serve import Cloud
from tests.clouds.vast.renter import Renter
from tests.provisioners.vast.conftest import START, adapter
from tests.provisioners.vast.test_vast import order

HOUR = timedelta(hours=1)
E = START + timedelta(minutes=41)  # 13:01
H = datetime(2026, 11, 21, 14, tzinfo=UTC)


@pytest.fixture
def box(market: Cloud, vast: Vast) -> str:
    made = vast.create(order(vast)).instance_id
    market.advance(1)
    return made


def hours(market: Cloud) -> list[str]:
    jobs_now = market.world.jobs.values()
    return [f"{datetime.fromtimestamp(job.start.timestamp(), UTC):%H:%M:%S}" for job in jobs_now]


@pytest.mark.parametrize(
    ("ends", "fires"),
    [("13:01", "14:00"), ("13:55", "14:00"), ("13:56", "15:00"), ("14:00", "15:00")],
)
def test_it_fires_at_the_first_full_hour_five_minutes_after(ends: str, fires: str) -> None:
    at, due = (datetime.fromisoformat(f"2026-11-21T{text}:00+00:00") for text in (ends, fires))
    assert jobs.fires_at(at) == due
    assert jobs.fires_at(at + timedelta(seconds=1)) >= at + timedelta(minutes=5)


def test_it_fires_at_full_hours_of_utc_whatever_the_zone_of_the_deadline(vast: Vast) -> None:
    half = datetime.fromisoformat("2026-11-21T18:31:00+05:30")
    assert vast.timer_fires_at(half) == H


def test_it_ends_the_box_and_the_bill_when_nobody_else_does(
    market: Cloud, vast: Vast, box: str
) -> None:
    held = vast.arm_provider_timer(box, E)
    assert held == vast.provider_timer(box)
    assert held is not None
    assert held.fires_at == H
    market.advance((H - START).total_seconds() - 2)
    assert market.meter().alive == 1, "never before its hour"
    market.advance(30)
    assert market.meter().alive == 0
    market.advance(9 * 3600)
    assert round(market.meter().billed_usd, 2) == Decimal("12.63")  # 100 minutes, not eleven hours


def test_it_is_one_request_that_vast_repeats_for_two_days_and_no_minute_is_set(
    market: Cloud, vast: Vast, box: str
) -> None:
    vast.arm_provider_timer(box, E)
    (row,) = Renter(market).http.get("/commands/schedule_job/").json()
    assert row["start_time"] == H.timestamp() + 1
    assert row["end_time"] == (H + 48 * HOUR).timestamp()
    assert (row["request_method"], row["frequency"]) == ("DELETE", "HOURLY")
    sent = market.world.account.audit[-1]["args"]
    assert "min_of_the_hour" not in sent


def test_a_later_deadline_replaces_the_job_and_the_old_hour_passes(
    market: Cloud, vast: Vast, box: str
) -> None:
    """A changed job was seen never to fire, so it is removed and made anew."""
    vast.arm_provider_timer(box, E)
    vast.arm_provider_timer(box, E + 2 * HOUR)
    assert hours(market) == ["16:00:01"]
    assert not any(job.updated for job in market.world.jobs.values())
    market.advance((H - START).total_seconds() + 60)
    assert market.meter().alive == 1
    market.advance(2 * 3600)
    assert market.meter().alive == 0


def test_a_sooner_deadline_replaces_it_too(market: Cloud, vast: Vast, box: str) -> None:
    vast.arm_provider_timer(box, E + 2 * HOUR)
    vast.arm_provider_timer(box, E)
    assert hours(market) == ["14:00:01"]


def test_the_same_hour_is_left_as_it_is(market: Cloud, vast: Vast, box: str) -> None:
    first = vast.arm_provider_timer(box, E)
    assert vast.arm_provider_timer(box, E + timedelta(minutes=10)) == first


def test_two_jobs_for_one_box_become_one(market: Cloud, vast: Vast, box: str) -> None:
    renter = Renter(market)
    renter.hour(int(box), H.timestamp() + 1)
    twin = next(iter(market.world.jobs.values()))
    market.world.jobs[twin.id + 1] = type(twin)(
        **{name: getattr(twin, name) for name in twin.__slots__} | {"id": twin.id + 1}
    )
    vast.arm_provider_timer(box, E)
    assert hours(market) == ["14:00:01"]


@pytest.mark.parametrize(("when", "held"), [("after", True), ("before", False)])
def test_a_lost_answer_is_found_in_the_list_or_asked_again(
    market: Cloud, vast: Vast, box: str, when: str, held: bool
) -> None:
    market.fault("schedule_answer_lost", when=when)
    assert (vast.arm_provider_timer(box, E) is not None) is held
    again = vast.arm_provider_timer(box, E)
    assert again is not None
    assert hours(market) == ["14:00:01"]


def test_an_account_that_may_not_is_told_from_one_that_does_not_answer(
    market: Cloud, vast: Vast, box: str
) -> None:
    market.fault("schedule_refused")
    with pytest.raises(TimerRefused, match="cannot be scheduled"):
        vast.arm_provider_timer(box, E)
    market.clear()
    market.fault("server_error", endpoint="schedule")
    assert vast.arm_provider_timer(box, E) is None
    market.clear()
    market.fault("server_error", endpoint="schedules")
    with pytest.raises(ProviderError, match="no sensible answer"):
        vast.arm_provider_timer(box, E)


def test_it_is_removed_and_nothing_fires_then(market: Cloud, vast: Vast, box: str) -> None:
    vast.arm_provider_timer(box, E)
    vast.disarm_provider_timer(box)
    vast.disarm_provider_timer(box)
    assert vast.provider_timer(box) is None
    market.advance(5 * 3600)
    assert market.meter().alive == 1


def test_removing_it_never_touches_another_boxs(market: Cloud, vast: Vast, box: str) -> None:
    other = vast.create(order(vast, label="gpurun-aaaaaa-bbbbbbbb-dddddd")).instance_id
    for each in (box, other):
        vast.arm_provider_timer(each, E)
    Renter(market).hour(int(box), H.timestamp(), request_method="PUT", request_body={})
    vast.disarm_provider_timer(box)
    assert vast.provider_timer(box) is None
    assert isinstance(vast.provider_timer(other), ProviderTimer)
    assert sorted(job.method for job in market.world.jobs.values()) == ["DELETE", "PUT"]


def test_jobs_that_would_not_fire_in_time_are_no_guards_and_make_way_for_one(
    market: Cloud, vast: Vast, box: str
) -> None:
    Renter(market).hour(
        int(box), H.timestamp() + 1, frequency="DAILY", hour_of_the_day=3, request_method="DELETE"
    )
    assert vast.provider_timer(box) is None
    vast.arm_provider_timer(box, E)
    assert hours(market) == ["14:00:01"]


def test_an_account_that_cannot_log_in_reads_back_nothing(market: Cloud, box: str) -> None:
    vast = adapter(market, key="0" * 64)
    with pytest.raises(ProviderError):
        vast.provider_timer(box)
