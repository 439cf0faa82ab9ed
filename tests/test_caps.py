"""Caps on a day and a month: what counts, what is refused, and that nothing slips through."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from hypothesis import Phase, given
from hypothesis import settings as effort
from hypothesis import strategies as st

from gpurun import settings as configuration
from gpurun.budget import cost
from gpurun.engine.limits import period_caps
from gpurun.errors import UsageError
from gpurun.model import Ending
from gpurun.places import Places
from gpurun.settings import Settings
from gpurun.store import Journal, OverCap
from gpurun.store.ledger import Caps
from gpurun.store.periods import PeriodCap
from tests.fakecloud import FakeClock
from tests.homes import WAITS, Home
from tests.stories import Story, journal_at

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
ZERO = Decimal(0)
CENT = Decimal("0.01")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON)


@pytest.fixture
def journal(tmp_path: Path, clock: FakeClock) -> Iterator[Journal]:
    journal = journal_at(tmp_path, clock)
    yield journal
    journal.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.close()


def today(clock: FakeClock, usd: str, provider: str | None = None) -> PeriodCap:
    limits = Settings(max_usd_per_day=Decimal(usd))
    (cap,) = period_caps(limits, "local", clock.now())
    return PeriodCap(cap.name, cap.usd, cap.since, cap.until, provider)


def reserved(
    journal: Journal, clock: FakeClock, run_id: str, usd: str, cap: PeriodCap, beside: str = "0"
) -> Story:
    """A box of $3.60 an hour, from the intent to its first sighting."""
    story = Story(journal, clock, run_id).begun()
    caps = Caps(Decimal(1000), periods=(cap,), beside_usd=Decimal(beside))
    attempts = journal.attempts
    attempts.intend(story.attempt(), story.timer(1, 60), [], Decimal(usd), caps, story.epoch)
    attempts.sending(story.label, story.epoch)
    attempts.made(story.label, f"i-{run_id}", "answer")
    attempts.seen(story.label, clock.now(), None)
    return story


def left(journal: Journal, cap: PeriodCap) -> Decimal:
    (room,) = journal.ledger.rooms([cap])
    return room.left_usd


def test_what_is_reserved_counts_at_once(journal: Journal, clock: FakeClock) -> None:
    cap = today(clock, "10")
    reserved(journal, clock, "run00001", "6", cap)
    assert left(journal, cap) == 4
    with pytest.raises(
        OverCap, match=r"max_usd_per_day is \$10\.00, of which \$6\.00 .* \$4\.01"
    ) as told:
        reserved(journal, clock, "run00002", "4.01", cap)
    assert str(told.value).endswith("in the settings, or wait until Nov 22 00:00 UTC.")
    with pytest.raises(OverCap) as told:
        reserved(journal, clock, "run00004", "10.01", cap)
    assert "wait" not in str(told.value)  # no day pays for that
    reserved(journal, clock, "run00003", "4", cap)
    assert left(journal, cap) == 0


def test_what_is_billed_was_reserved_and_counts_once(journal: Journal, clock: FakeClock) -> None:
    cap = today(clock, "10")
    story = reserved(journal, clock, "run00001", "6", cap)
    clock.advance(1800)
    journal.ledger.book(story.label, "train")
    assert left(journal, cap) == 4


def test_the_end_of_a_box_gives_back_what_it_has_not_cost(
    journal: Journal, clock: FakeClock
) -> None:
    cap = today(clock, "10")
    story = reserved(journal, clock, "run00001", "6", cap)
    clock.advance(1800)
    story.gone()
    assert left(journal, cap) == Decimal("8.20")


def test_traffic_and_tail_count_until_the_provider_has_charged(
    journal: Journal, clock: FakeClock
) -> None:
    cap = today(clock, "10")
    story = reserved(journal, clock, "run00001", "6", cap, beside="0.50")
    assert left(journal, cap) == Decimal("3.50")
    journal.ledger.hold(story.label, tail_s=360)
    assert left(journal, cap) == Decimal("3.50")  # the reservation holds the tail
    clock.advance(1800)
    story.gone()
    assert left(journal, cap) == Decimal("7.34")
    journal.ledger.settle(story.label, Decimal("1.95"))
    assert left(journal, cap) == Decimal("8.05")


def test_a_night_counts_on_each_of_its_days_what_it_has_cost_there(
    journal: Journal, clock: FakeClock
) -> None:
    story = reserved(journal, clock, "run00001", "60", today(clock, "100"))
    clock.advance(13 * 3600)  # 01:00
    story.gone()
    cap = today(clock, "100")
    assert left(journal, cap) == Decimal("96.40")
    journal.ledger.settle(story.label, Decimal("23.40"))  # half of what had accrued
    assert left(journal, cap) == Decimal("98.20")
    month = PeriodCap("max_usd_per_month", Decimal(100), NOON.replace(day=1, hour=0), NOON)
    assert left(journal, month) == Decimal("76.60")


def test_the_night_does_not_set_what_is_reserved_free(journal: Journal, clock: FakeClock) -> None:
    story = reserved(journal, clock, "run00001", "60", today(clock, "100"))
    clock.advance(13 * 3600)
    journal.ledger.book(story.label, "train")
    # 13 of the hours that $60 pay for are over; $3.60 of them are of today.
    assert left(journal, today(clock, "100")) == 100 - (60 - Decimal("46.80")) - Decimal("3.60")


def test_a_box_of_yesterday_counts_no_more(journal: Journal, clock: FakeClock) -> None:
    story = reserved(journal, clock, "run00001", "6", today(clock, "10"))
    clock.advance(1800)
    story.gone()
    clock.advance(86400)
    assert left(journal, today(clock, "10")) == 10


def test_a_cap_of_a_provider_counts_that_provider_alone(journal: Journal, clock: FakeClock) -> None:
    reserved(journal, clock, "run00001", "6", today(clock, "10"))
    assert left(journal, today(clock, "10", "local")) == 4
    assert left(journal, today(clock, "10", "vast")) == 10


def test_all_boxes_together_cost_no_more_an_hour_than_their_cap(
    journal: Journal, clock: FakeClock
) -> None:
    def rent(run_id: str, cap: str) -> Story:
        story = Story(journal, clock, run_id).begun()  # $3.60 an hour
        caps = Caps(Decimal(1000), Decimal(cap), story.usd_per_hour)
        timer = story.timer(1, 60)
        journal.attempts.intend(story.attempt(), timer, [], Decimal(1), caps, story.epoch)
        return story

    first = rent("run00001", "7.20")
    with pytest.raises(OverCap, match=r"would cost \$7\.20/h; max_concurrent_usd_per_hour is"):
        rent("run00002", "7.19")
    rent("run00003", "7.20")
    with pytest.raises(OverCap, match=r"Wait for a run to end"):
        rent("run00004", "7.20")
    with pytest.raises(OverCap, match=r"Rent a cheaper box"):
        rent("run00006", "3.59")
    journal.attempts.refused(first.label, "sold out")
    rent("run00005", "7.20")


def test_a_refused_offer_costs_no_cap(journal: Journal, clock: FakeClock) -> None:
    cap = today(clock, "10")
    story = reserved(journal, clock, "run00001", "6", cap, beside="1")
    journal.attempts.refused(story.label, "sold out")
    assert left(journal, cap) == 10


def test_a_box_that_never_appeared_holds_a_quarter_of_an_hour(
    journal: Journal, clock: FakeClock
) -> None:
    cap = today(clock, "10")
    story = Story(journal, clock, "run00001").begun()
    caps = Caps(Decimal(1000), periods=(cap,))
    journal.attempts.intend(story.attempt(), story.timer(1, 60), [], Decimal(6), caps, story.epoch)
    journal.attempts.sending(story.label, story.epoch)
    journal.attempts.ghost(story.label)
    assert left(journal, cap) == Decimal("9.10")


def test_caps_are_those_of_the_settings_for_day_and_month_and_provider() -> None:
    limits = Settings(
        max_usd_per_day=Decimal(50),
        max_usd_per_month=Decimal(900),
        max_usd_per_day_at={"vast": Decimal(20), "ssh": Decimal(5)},
    )
    december = datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC)
    new_year = datetime(2027, 1, 1, tzinfo=UTC)
    day, month = datetime(2026, 12, 31, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
    assert period_caps(limits, "vast", december) == (
        PeriodCap("max_usd_per_day", Decimal(50), day, new_year),
        PeriodCap("max_usd_per_day_at.vast", Decimal(20), day, new_year, "vast"),
        PeriodCap("max_usd_per_month", Decimal(900), month, new_year),
    )
    names = [cap.name for cap in period_caps(limits, "ssh:root@host:22", december)]
    assert names == ["max_usd_per_day", "max_usd_per_day_at.ssh", "max_usd_per_month"]


# What may happen to one box: minutes pass, it is booked, armed anew, ends, is charged.
steps = st.lists(
    st.tuples(
        st.sampled_from(["book", "arm", "end", "settle"]),
        st.integers(min_value=0, max_value=200),
        st.integers(min_value=1, max_value=999),
    ),
    max_size=6,
)
numbers = count()


@effort(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.lists(steps, min_size=3, max_size=5))
def test_no_history_lets_a_day_cost_more_than_its_cap(
    template: Path, histories: list[list[tuple[str, int, int]]]
) -> None:
    """Whatever is let through: what a day has cost, and all that its live boxes may yet cost,
    never comes to more than the cap.
    """
    path = template.with_name(f"{next(numbers)}.db")
    shutil.copy(template, path)
    day = Day(path, Decimal(20))
    try:
        for number, history in enumerate(histories):
            day.live(f"run0000{number}", history)
            assert day.worst_usd() <= day.limit + CENT
    finally:
        day.journal.close()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    journal = journal_at(folder, FakeClock(NOON))
    journal.close()
    return Places(folder).database


class Day:
    """Boxes of $9 each, as many as the cap lets through; each ends when its reservation is used."""

    def __init__(self, path: Path, limit: Decimal) -> None:
        self.clock = FakeClock(NOON)
        self.journal = Journal(path, self.clock)
        self.limit = limit
        self._runs: list[str] = []
        self._ends_at: dict[str, datetime] = {}  # of what lives, by run
        self._stories: dict[str, Story] = {}

    def live(self, run_id: str, history: list[tuple[str, int, int]]) -> None:
        cap = today(self.clock, str(self.limit))
        try:
            story = reserved(self.journal, self.clock, run_id, "9", cap)
        except OverCap:
            assert left(self.journal, cap) < 9
            return
        self._runs.append(run_id)
        self._stories[run_id] = story
        self._ends_at[run_id] = self.clock.now() + timedelta(hours=2.5)
        for what, minutes, share in history:
            self._pass(minutes)
            if run_id in self._ends_at:
                self._do(story, what, share)

    def worst_usd(self) -> Decimal:
        """By the rows themselves, each by hand."""
        for story in self._stories.values():
            self.journal.ledger.book(story.label, "train")
        left_s = [(at - self.clock.now()).total_seconds() for at in self._ends_at.values()]
        return self._cost() + sum((cost(Decimal("3.60"), seconds) for seconds in left_s), ZERO)

    def _do(self, story: Story, what: str, share: int) -> None:
        """`share` is in thousandths: of what is left, or of what was accrued."""
        now = self.clock.now()
        self.journal.ledger.book(story.label, "train")
        if what == "arm":
            left_s = (self._ends_at[story.run_id] - now).total_seconds() * share / 1000
            self._ends_at[story.run_id] = now + timedelta(seconds=left_s)
            caps = Caps(Decimal(1000), periods=(today(self.clock, str(self.limit)),))
            timer = story.timer(self.journal.timers.last_seq(story.label) + 1, 60, "run")
            usd = cost(story.usd_per_hour, left_s)
            self.journal.timers.arming(timer, story.run_id, story.epoch, usd, caps)
        elif what != "book":
            self._end(story)
            if what == "settle":
                accrued = self.journal.ledger.spent_usd(story.run_id)
                self.journal.ledger.settle(story.label, accrued * share / 1000)

    def _pass(self, minutes: int) -> None:
        until = self.clock.now() + timedelta(minutes=minutes)
        while self._ends_at and min(self._ends_at.values()) <= until:
            run_id = min(self._ends_at, key=lambda each: self._ends_at[each])
            self.clock.advance((self._ends_at[run_id] - self.clock.now()).total_seconds())
            self._end(self._stories[run_id])
        self.clock.advance((until - self.clock.now()).total_seconds())

    def _end(self, story: Story) -> None:
        story.gone(Ending.DONE)
        del self._ends_at[story.run_id]

    def _cost(self) -> Decimal:
        midnight = self.clock.now().replace(hour=0, minute=0, second=0, microsecond=0)
        total = ZERO
        for run_id in self._runs:
            rows = self.journal.ledger.rows(run_id)
            accrued = sum((row.usd for row in rows if row.kind == "accrue"), ZERO)
            charged = sum((row.usd for row in rows), ZERO)
            for row in rows:
                if row.kind == "accrue" and row.since is not None and row.at > midnight:
                    inside = (row.at - max(row.since, midnight)) / (row.at - row.since)
                    total += row.usd * Decimal(str(inside)) * charged / accrued
        return total


def test_of_two_that_start_at_once_the_day_pays_for_one(home: Home) -> None:
    """Two real commands, two drivers: each run may cost $0.84 and the day $1."""
    home.config.write_text("max_usd_per_day = 1\n")
    recipe = home.recipe(train=WAITS, run_minutes=5)
    with ThreadPoolExecutor(2) as both:
        started = list(both.map(lambda _: home.run("up", recipe, "--yes", "-d"), range(2)))
    begun = [done.stdout.split()[-1] for done in started if done.returncode == 0]
    assert begun, started
    for run in begun:
        home.until(partial(_decided, home, run))
    states = [home.document(run)["state"] for run in begun]
    assert states.count("active") == 1, (started, states, home.logs())
    assert len(list(home.places.boxes.glob("gpurun-*"))) == 1
    refused = [done.stderr for done in started if done.returncode] + [
        home.document(run)["error"] for run in begun if home.document(run)["state"] != "active"
    ]
    assert [text for text in refused if "max_usd_per_day is $1.00" in text], refused
    for run, state in zip(begun, states, strict=True):
        if state != "active":
            assert home.document(run)["exit_code"] == 3
    assert home.run("kill", "--all", "--yes", "--no-collect").returncode == 0


def _decided(home: Home, run: str) -> bool:
    document = home.document(run)
    return document["state"] != "active" or document["phase"] not in ("rent", None)


def test_the_plan_names_the_tightest_cap_and_refuses_beyond_it(home: Home) -> None:
    home.config.write_text("max_usd_per_month = 30\n[max_usd_per_day_at]\nlocal = 5\n")
    recipe = home.recipe()
    planned = home.run("up", recipe, "--dry-run")
    assert "cap       max_usd_per_day_at.local $5.00 is the tightest: $5.00" in planned.stdout
    document = json.loads(home.run("up", recipe, "--dry-run", "--json").stdout)
    assert document["tightest_cap"] == {
        "name": "max_usd_per_day_at.local",
        "usd": "5.00",
        "left_usd": "5.00",
    }
    home.config.write_text("max_usd_per_month = 0.5\n")
    refused = home.run("up", recipe, "--yes")
    assert refused.returncode == 3
    assert "max_usd_per_month is $0.50" in refused.stderr
    assert not home.places.database.exists()


def test_the_dollars_per_hour_of_all_are_in_the_plan_too(home: Home) -> None:
    home.config.write_text("max_concurrent_usd_per_hour = 3\n")
    refused = home.run("up", home.recipe(), "--dry-run")
    assert refused.returncode == 3
    assert "max_concurrent_usd_per_hour is $3.00" in refused.stderr


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('max_usd_per_day = "lots"\n', "config.toml:1: max_usd_per_day is lots"),
        ("max_usd_per_day = -5\n", "config.toml:1: max_usd_per_day is -5: it should be greater"),
        ("max_usd_per_month = nan\n", "config.toml:1: max_usd_per_month is"),
        ("max_usd_per_month = [1]\n", "config.toml:1: max_usd_per_month is"),
        ("\nmax_usd_a_day = 5\n", "config.toml:2: max_usd_a_day is not a setting: did you mean"),
        ("max_usd_per_day_at = 5\n", "config.toml:1: max_usd_per_day_at is 5"),
        ("[max_usd_per_day_at]\nvast = 0\n", "max_usd_per_day_at.vast is 0"),
        ("max_usd_per_day = 5\nmax_usd_per_day = 6\n", "not TOML"),
        ("max_usd_per_day = 5 dollars\n", "not TOML"),
    ],
)
def test_a_budget_written_as_nonsense_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, said: str
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(written)
    monkeypatch.setenv("GPURUN_CONFIG", str(config))
    with pytest.raises(UsageError) as told:
        configuration.load()
    assert said in str(told.value)


def test_nonsense_in_the_budget_buys_nothing_and_keeps_no_box_alive(home: Home) -> None:
    run = home.up(home.recipe(train=WAITS))
    home.until_phase(run, "train")
    home.config.write_text('max_usd_per_day = "lots"\n')
    for command in (("up", home.recipe(name="other"), "--yes"), ("extend", run, "1m", "--yes")):
        refused = home.run(*command)
        assert refused.returncode == 2
        assert "max_usd_per_day is lots" in refused.stderr
    killed: subprocess.CompletedProcess[str] = home.run("kill", run, "--yes", "--no-collect")
    assert killed.returncode == 0, killed.stderr
    assert home.document(run)["state"] == "killed"


def test_a_cap_on_no_provider_is_refused_before_anything_is_rented(home: Home) -> None:
    home.config.write_text("[max_usd_per_day_at]\nvats = 50\n")
    refused = home.run("up", home.recipe(), "--yes")
    assert refused.returncode == 2
    assert "max_usd_per_day_at in the settings names vats" in refused.stderr
    assert "vast" in refused.stderr


def test_a_day_is_over_at_midnight_utc(journal: Journal) -> None:
    clock = FakeClock(NOON + timedelta(hours=11, minutes=59))
    cap = today(clock, "1")
    assert (cap.since.day, cap.until) == (21, datetime(2026, 11, 22, tzinfo=UTC))
    clock.advance(60)
    assert today(clock, "1").since == cap.until
