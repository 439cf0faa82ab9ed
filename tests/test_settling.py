"""Money shown is never below the meter, and equals the bill once the provider has sent it."""

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from pathlib import Path

import pytest

from gpurun import show
from gpurun.clock import SystemClock
from gpurun.keeper import settling as module
from gpurun.keeper.settling import asked_from, settle_run
from gpurun.model import AttemptState
from gpurun.settings import Settings
from gpurun.store import OverCap
from gpurun.store.ledger import Bill, Caps
from tests.billed import START, Life, life, tick
from tests.homes import GPURUN

CENT = Decimal("0.01")
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
ENOUGH_S = 360 + module.LATE_S + 1  # from the proof until a provider may be believed


@pytest.fixture(params=["vast", "prime"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Life]:
    with life(request.param, tmp_path) as found:
        yield found


@pytest.fixture
def vast(tmp_path: Path) -> Iterator[Life]:
    with life("vast", tmp_path) as found:
        yield found


@pytest.fixture
def prime(tmp_path: Path) -> Iterator[Life]:
    with life("prime", tmp_path) as found:
        yield found


def cents(amount: Decimal) -> Decimal:
    return amount.quantize(CENT, rounding=ROUND_CEILING)


def lived(run: Life, *, is_over: bool = True) -> None:
    """Rented, trained for a while, destroyed and proven gone."""
    run.rent()
    run.lives(1, 0.5)
    run.seen()
    run.lives(900, 60, "setup")
    run.lives(1200, 60, "train")
    run.ends()
    if is_over:
        run.finished()


def billed_long_ago(run: Life) -> None:
    """Until the day after, when both providers have said all."""
    run.passes(DAY_S)


FAULTS = [
    pytest.param("vast", [], id="vast"),
    pytest.param("vast", [("tail_s", {"seconds": 318})], id="vast-tail"),
    pytest.param(
        "vast",
        [("tail_s", {"seconds": 360}), ("traffic", {"up_gb": 2, "down_gb": 6})],
        id="vast-tail-and-traffic",
    ),
    pytest.param("vast", [("boot_s", {"seconds": 600}), ("tail_s", {})], id="vast-loading"),
    pytest.param("vast", [("outbid", {"after_s": 400}), ("tail_s", {})], id="vast-stopped"),
    pytest.param("vast", [("price_up", {"factor": 1.25}), ("tail_s", {})], id="vast-price"),
    pytest.param("vast", [("disk_price_up", {"factor": 9}), ("tail_s", {})], id="vast-disk"),
    pytest.param("vast", [("status_word", {"word": "frozen"})], id="vast-frozen"),
    pytest.param("prime", [("tail_s", {"seconds": 318})], id="prime-tail"),
    pytest.param("prime", [("outbid", {"after_s": 400}), ("tail_s", {})], id="prime-stopped"),
    pytest.param("prime", [("start_fails", {}), ("tail_s", {})], id="prime-error"),
]


@pytest.mark.parametrize(("provider", "faults"), FAULTS)
def test_shown_money_is_never_below_the_meter_from_the_order_to_the_end_of_the_tail(
    tmp_path: Path, provider: str, faults: list[tuple[str, dict[str, object]]]
) -> None:
    with life(provider, tmp_path) as run:
        for name, values in faults:
            run.market.fault(name, **values)
        run.rent()
        run.seen()
        run.lives(20, 1)
        run.lives(600, 40, "setup")
        run.lives(307, 31, "train")
        run.ends()
        run.lives(400, 9)
        assert run.shown_usd() > 0


def test_both_boxes_of_a_run_count(vast: Life) -> None:
    vast.market.fault("tail_s", seconds=360)
    vast.rent()
    vast.seen()
    vast.ends()
    vast.rent()
    vast.seen()
    vast.lives(300, 30, "setup")
    vast.ends()
    vast.lives(400, 40)
    vast.finished()
    billed_long_ago(vast)
    tick(vast.settling())
    assert vast.shown_usd() == cents(vast.billed_usd())
    assert [bill["awaited"] for bill in vast.report()["bills"]] == [False, False]


def test_once_settled_a_run_has_cost_what_the_provider_charged(run: Life) -> None:
    run.market.fault("tail_s", seconds=200)
    lived(run)
    before = run.shown_usd()
    billed_long_ago(run)
    tick(run.settling())
    document = run.report()
    billed = cents(run.billed_usd())
    assert Decimal(document["spent_usd"]) == billed < before
    assert sum(Decimal(phase["usd"]) for phase in document["phases"]) == billed
    assert [phase["name"] for phase in document["phases"]][-1] == "settle"
    (bill,) = document["bills"]
    assert (Decimal(bill["charged_usd"]), bill["awaited"]) == (billed, False)
    assert [e["what"] for e in document["events"]].count("settled") == 1
    assert f"was charged ${billed}" in show.report_text(document, show.Look())


def test_until_it_is_settled_a_report_says_what_may_still_be_billed(run: Life) -> None:
    lived(run)
    document = run.report()
    (bill,) = document["bills"]
    late = Decimal(bill["tail_usd"]) + Decimal(bill["traffic_usd"])
    assert bill["awaited"]
    assert late > 0
    spent = Decimal(document["spent_usd"])
    assert abs(spent - Decimal(bill["accrued_usd"]) - late) <= 2 * CENT  # each is rounded up
    assert sum(Decimal(phase["usd"]) for phase in document["phases"]) == spent
    text = show.report_text(document, show.Look())
    assert f"not yet billed by {run.story.provider} {run.ids[0]}" in text
    assert f"{bill['tail_usd']} for its tail" in text


def test_prime_is_settled_minutes_after_the_end(prime: Life) -> None:
    prime.market.fault("history_lag_s", seconds=150)
    lived(prime)
    keeper = prime.settling()
    prime.passes(ENOUGH_S - 60)
    tick(keeper)
    assert prime.report()["bills"][0]["charged_usd"] is None
    prime.passes(60)
    tick(keeper)
    assert prime.shown_usd() == cents(prime.billed_usd())


def test_vast_is_settled_when_the_day_is_over(vast: Life) -> None:
    """With all that it has moved, more than anybody expected."""
    lived(vast)
    keeper = vast.settling()
    vast.passes(6 * HOUR_S)
    tick(keeper)
    vast.judge()
    vast.market.world.rentals[0].meter.charge("bwd", Decimal("5.005"))
    assert vast.report()["bills"][0]["charged_usd"] is None
    vast.passes(6 * HOUR_S)
    tick(keeper)
    assert vast.shown_usd() == cents(vast.billed_usd())


def test_the_first_day_of_a_life_on_two_is_not_taken_for_all_of_it(tmp_path: Path) -> None:
    with life("vast", tmp_path, START.replace(hour=23, minute=40)) as vast:
        vast.market.fault("tail_s", seconds=300)
        lived(vast)
        keeper = vast.settling()
        for _ in range(23):
            vast.passes(HOUR_S)
            tick(keeper)
            vast.judge()
            assert vast.report()["bills"][0]["charged_usd"] is None
        part = vast.cloud.billed_usd(vast.ids[0])
        assert part is not None
        assert 0 < part < vast.billed_usd()
        vast.passes(2 * HOUR_S)
        tick(keeper)
        assert vast.shown_usd() == cents(vast.billed_usd())


def test_a_charge_that_grows_is_booked_again(prime: Life) -> None:
    prime.market.fault("tail_s", seconds=3 * HOUR_S)
    lived(prime)
    keeper = prime.settling()
    prime.passes(ENOUGH_S)
    tick(keeper)
    first = prime.shown_usd()
    assert first == cents(prime.billed_usd())
    prime.passes(7 * HOUR_S)
    tick(keeper)
    assert prime.shown_usd() == cents(prime.billed_usd()) > first
    events = [event["what"] for event in prime.report()["events"]]
    assert events.count("settled") == 2


def test_a_charge_that_stays_the_same_is_booked_once(run: Life) -> None:
    lived(run)
    billed_long_ago(run)
    for _ in range(3):
        tick(run.settling())
    kinds = [row.kind for row in run.story.journal.ledger.rows(run.story.run_id)]
    assert kinds.count("settle") == 1


def test_a_charge_that_never_comes_is_remarked_once_and_the_accrued_stays(prime: Life) -> None:
    prime.market.fault("history_lag_s", seconds=90 * DAY_S)
    lived(prime)
    shown = prime.shown_usd()
    keeper = prime.settling()
    for _ in range(5 * 24):
        prime.passes(HOUR_S)
        tick(keeper)
    tick(prime.settling())  # the next keeper does not begin again
    remarks = [e["detail"] for e in prime.report()["events"] if e["what"] == "unbilled"]
    assert [remark.split(":")[0] for remark in remarks] == [
        "prime has not said within 4 days what it charged"
    ]
    assert prime.shown_usd() == shown


def test_a_provider_that_fails_is_asked_again_later_and_never_given_up_for_it(vast: Life) -> None:
    vast.market.fault("server_error", endpoint="charges", status=500)
    lived(vast)
    keeper = vast.settling()
    vast.passes(5 * DAY_S)
    tick(keeper)
    vast.market.clear("server_error")
    vast.passes(module.LOOK_EVERY_S)
    tick(keeper)
    assert vast.report()["bills"][0]["awaited"]  # not so soon
    vast.passes(module.ASK_EVERY_S)
    tick(keeper)
    assert vast.shown_usd() == cents(vast.billed_usd())


def test_the_charges_of_others_are_not_ours(run: Life) -> None:
    """A box of somebody else's in the account, and one whose id is not known here."""
    run.market.fault("twin_label", seconds_before=0)
    lived(run)
    billed_long_ago(run)
    tick(run.settling())
    assert run.market.meter().billed_usd > run.billed_usd()
    assert run.shown_usd() == cents(run.billed_usd())


def test_another_accounts_charges_settle_nothing(
    run: Life, caplog: pytest.LogCaptureFixture
) -> None:
    lived(run)
    billed_long_ago(run)
    run.market.fault("key_of_other_account")
    before = run.shown_usd()
    tick(run.settling())
    assert run.shown_usd() == before
    assert "is not known" in caplog.text


def test_a_box_that_comes_back_is_not_settled(vast: Life) -> None:
    lived(vast)
    billed_long_ago(vast)
    tick(vast.settling())
    attempts, ledger = vast.story.journal.attempts, vast.story.journal.ledger
    attempts.reappeared(vast.label)
    assert not vast.report()["bills"][0]["charged_usd"]
    assert not ledger.settle(vast.label, Decimal(1))
    spent = vast.shown_usd()
    vast.clock.advance(600)
    assert vast.shown_usd() > spent


def test_whoever_rented_it_need_not_have_written_the_tail_down(run: Life) -> None:
    """A keeper finds a box without, also one that is gone by now; and a dearer rate raises it."""
    rate, journal = Decimal("7.20"), run.story.journal
    attempts = journal.attempts
    attempts.intend(
        run.story.attempt(), run.story.timer(1, 9), [], Decimal(1), Caps(Decimal(90)), 1
    )
    attempts.sending(run.story.label, run.story.epoch)
    attempts.made(run.story.label, "4711", "answer")
    keeper = run.settling()
    tick(keeper)
    attempts.seen(run.story.label, None, rate)
    run.clock.advance(module.LOOK_EVERY_S)
    tick(keeper)
    assert run.report()["bills"][0]["tail_usd"] == "0.72"
    attempts.gone(run.story.label, "{}")
    assert run.shown_usd() == cents(rate * 30 / 3600 + Decimal("0.72"))


def test_what_may_still_be_billed_buys_no_other_box(vast: Life) -> None:
    lived(vast, is_over=False)
    ledger = vast.story.journal.ledger
    spent = ledger.spent_usd(vast.story.run_id)
    committed = ledger.committed_usd(vast.story.run_id)
    assert committed > spent
    assert cents(committed) == vast.shown_usd()
    other = vast.story.attempt()
    caps = Caps(run_usd=committed + 1)
    with pytest.raises(OverCap):
        vast.story.journal.attempts.intend(
            other, vast.story.timer(1, 9), [], Decimal("1.01"), caps, vast.story.epoch
        )
    billed_long_ago(vast)
    tick(vast.settling())
    charged = vast.cloud.billed_usd(vast.ids[0])
    assert charged is not None
    assert ledger.committed_usd(vast.story.run_id) == pytest.approx(charged, abs=Decimal("1e-20"))


def test_a_box_that_was_never_made_holds_nothing(vast: Life) -> None:
    journal, label = vast.story.journal, vast.story.label
    journal.attempts.intend(
        vast.story.attempt(), vast.story.timer(1, 9), [], Decimal(1), Caps(Decimal(90)), 1
    )
    journal.ledger.hold(label, 360, Decimal("0.10"))
    journal.attempts.refused(label, "sold")
    assert journal.attempts.get(label).state is AttemptState.REFUSED
    assert journal.ledger.committed_usd(vast.story.run_id) == 0
    assert vast.shown_usd() == 0
    assert vast.report()["bills"] == []


def test_a_tick_asks_a_provider_in_its_own_time(vast: Life) -> None:
    lived(vast)
    billed_long_ago(vast)
    vast.market.fault("slow", endpoint="charges", seconds=1, times=1)
    keeper = vast.settling()
    keeper.step()
    assert keeper.working()
    tick(keeper)


def bill(sent_at: datetime, gone_at: datetime) -> Bill:
    return Bill("label", "run", "vast", "1", "5", sent_at, gone_at, None, given_up=False)


@pytest.mark.parametrize(
    ("sent", "gone", "asked"),
    [
        ("21T12:00", "21T14:00", "21T14:16"),
        ("21T12:00", "21T23:53", "22T00:09"),
        ("21T12:00", "21T23:54", "23T00:10"),  # its tail reaches into the next day
        ("21T23:00", "22T02:00", "23T00:10"),
        ("19T23:00", "22T02:00", "23T00:10"),
    ],
)
def test_nobody_is_asked_before_all_of_a_charge_can_be_there(
    sent: str, gone: str, asked: str
) -> None:
    at = [datetime.fromisoformat(f"2026-11-{text}:00").replace(tzinfo=UTC) for text in (sent, gone)]
    found = asked_from(bill(*at), tail_s=360)
    assert f"{found:%dT%H:%M}" == asked


@pytest.fixture
def accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's but the test's."""
    for name in ("HOME", "GPURUN_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("GPURUN_CONFIG", str(tmp_path / "none.toml"))


def key_of(run: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAST_URL", run.market.url)
    monkeypatch.setenv("VAST_API_KEY", run.market.api_key)


@pytest.mark.usefixtures("accounts")
def test_a_report_settles_a_run_without_a_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=2)
    with life("vast", tmp_path, long_ago.replace(hour=9)) as run:
        key_of(run, monkeypatch)
        lived(run)
        run.passes((datetime.now(UTC) - run.clock.now()).total_seconds())
        command = [str(GPURUN), "report", run.story.run_id]
        said = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
        document = json.loads(said.stdout)
        assert Decimal(document["spent_usd"]) == cents(run.billed_usd())
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert f"settled: vast {run.ids[0]} was charged" in text


@pytest.mark.usefixtures("accounts")
@pytest.mark.parametrize("how", ["hang", "drop", "no key"])
def test_a_report_is_shown_whether_or_not_the_provider_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    with life("vast", tmp_path, datetime.now(UTC) - timedelta(days=2)) as run:
        lived(run)
        run.passes((datetime.now(UTC) - run.clock.now()).total_seconds())
        if how != "no key":
            key_of(run, monkeypatch)
            run.market.fault("down", how=how)
        before = run.shown_usd()
        began_s = SystemClock().boot_s()
        settle_run(run.story.run_id, Settings(), within_s=0.5)
        assert SystemClock().boot_s() - began_s < 10  # a provider that hangs does so for minutes
        assert run.shown_usd() == before
        run.market.clear()
