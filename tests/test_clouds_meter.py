"""The time and the meter of the emulated clouds, to the cent and beyond."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from tests.clouds.clock import Clock, Timeline
from tests.clouds.faults import Fault, Knobs
from tests.clouds.knobs import FAULTS
from tests.clouds.meter import Meter

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
PROTOCOL = {
    "list_lag_s",
    "list_empty",
    "list_page_fails",
    "total_wrong",
    "flicker",
    "reappear_after_s",
    "key_of_other_account",
    "auth_404",
    "date_skew_s",
    "stale_date",
    "schedule_refused",
    "schedule_answer_lost",
    "container_restart",
    "recycle",
    "host_reboot",
    "outbid",
    "resume_after_s",
    "relabel",
    "id_reuse",
    "console_destroy",
    "credit_zero",
    "key_revoked",
    "tail_s",
    "price_up",
}


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_a_meter_bills_each_rate_for_its_own_time() -> None:
    meter = Meter()
    meter.bill(at(0), {"disk": Decimal("0.10")})
    meter.bill(at(600), {"disk": Decimal("0.10"), "gpu": Decimal("7.20")})
    meter.bill(at(2400), {"disk": Decimal("0.20")})
    meter.bill(at(6000), {})
    assert meter.items(at(9999)) == {
        "disk": Decimal("0.10") * 2400 / 3600 + Decimal("0.20"),
        "gpu": Decimal("3.60"),
    }


def test_a_meter_counts_a_part_of_a_second() -> None:
    meter = Meter()
    meter.bill(at(0), {"gpu": Decimal(3600)})
    assert meter.usd(at(0.25)) == Decimal("0.25")


def test_a_meter_keeps_single_charges_beside_its_rates() -> None:
    meter = Meter()
    meter.charge("bwd", Decimal("0.013"))
    meter.charge("bwd", Decimal("0.007"))
    assert meter.usd(at(5)) == Decimal("0.020")


def test_a_jump_passes_through_what_was_due_at_its_own_instant() -> None:
    clock = Clock(START, rate=0)
    timeline = Timeline(clock)
    seen: list[tuple[str, datetime]] = []
    timeline.after(3600, lambda: seen.append(("late", timeline.now)))

    def chain() -> None:
        timeline.after(60, lambda: seen.append(("chained", timeline.now)))

    timeline.after(60, chain)
    timeline.after(30, lambda: seen.append(("cancelled", timeline.now))).cancel()
    clock.advance(9 * 3600)
    timeline.settle()
    assert seen == [("chained", at(120)), ("late", at(3600))]
    assert timeline.now == at(9 * 3600)


def test_a_clock_never_goes_back() -> None:
    with pytest.raises(ValueError, match="cannot go back"):
        Clock(START).advance(-1)


def test_a_clock_can_be_sped_up() -> None:
    clock = Clock(START, rate=0)
    assert clock.now() == START
    clock.run_at(1_000_000)
    while clock.now() == START:
        pass
    clock.run_at(0)
    assert clock.now() > START


def test_every_fault_of_the_protocol_is_a_knob() -> None:
    assert {fault.name for fault in FAULTS} >= PROTOCOL


def test_every_fault_has_one_name_and_one_sentence() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(names) == len(set(names))
    assert all(fault.sentence.endswith(".") and fault.providers for fault in FAULTS)


def test_a_knob_says_what_it_could_have_been_given() -> None:
    knobs = Knobs("vast", FAULTS)
    with pytest.raises(ValueError, match=r"vast has no fault 'tail': it has .*tail_s"):
        knobs.set("tail", {})
    with pytest.raises(ValueError, match=r"tail_s has no \['minutes'\]: it has \['seconds'\]"):
        knobs.set("tail_s", {"minutes": 5})


def test_a_knob_is_cleared_after_its_last_time_and_only_for_its_endpoint() -> None:
    fault = Fault("odd", ("vast",), "Odd.", (("endpoint", None), ("times", None)))
    knobs = Knobs("vast", (fault,))
    knobs.set("odd", {"endpoint": "create", "times": 2})
    assert knobs.hit("odd", "list") is None
    assert knobs.hit("odd", "create")
    assert knobs.hit("odd", "create")
    assert knobs.hit("odd", "create") is None
