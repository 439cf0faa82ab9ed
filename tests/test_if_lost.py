"""What `status` says of the guards of a box, and of its bill if this machine dies now."""

import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpurun import glance, show
from gpurun.clock import SystemClock
from gpurun.locks import hold
from gpurun.places import Places
from tests.clouds.prime.account import USER_ID
from tests.clouds.serve import cloud
from tests.clouds.stub import StubBoxes
from tests.fakecloud import FakeClock
from tests.homes import Home
from tests.stories import Story, journal_at

WIDE = show.Look()
ONE = datetime(2026, 11, 21, 13, 0, tzinfo=UTC)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def vast(tmp_path: Path, clock: FakeClock) -> Iterator[Story]:
    """$7.56/h; its timer ends it at 12:11, the fuse 2 minutes later, Vast at one."""
    story = Story(journal_at(tmp_path, clock), clock, provider="vast", usd_per_hour=Decimal("7.56"))
    story.rented(minutes=10).watched()
    guards(story, fuse=1, provider=1)
    yield story
    story.journal.close()


@pytest.fixture
def prime(tmp_path: Path, clock: FakeClock) -> Iterator[Story]:
    """$8.76/h; its fuse ends processes only."""
    story = Story(
        journal_at(tmp_path, clock), clock, provider="prime", usd_per_hour=Decimal("8.76")
    )
    story.rented(minutes=10).watched()
    story.journal.timers.guard_ends_bill(story.label, "fuse", False)
    story.journal.timers.guard(
        story.label, "fuse", "armed", seq=1, ends_at=clock.now() + timedelta(minutes=11)
    )
    yield story
    story.journal.close()


def guards(story: Story, *, fuse: int | None, provider: int | None) -> None:
    """Read back just now; with the number of the timer that they hold."""
    timers, now = story.journal.timers, story.clock.now()
    ends_at = now.replace(minute=11, second=0)
    timers.guard_ends_bill(story.label, "provider", True)
    timers.guard(story.label, "fuse", "armed", seq=fuse, ends_at=ends_at)
    timers.guard(story.label, "provider", "armed", seq=provider, ends_at=ONE)


def wallet(home: Path, usd: str, at: datetime) -> None:
    """As a keeper writes it that has asked."""
    columns = {row[1] for row in _sql(home, "PRAGMA table_info(keeper_accounts)")}
    for name, kind in (("credit_usd", "TEXT"), ("credit_at", "REAL")):
        if name not in columns:
            _sql(home, f"ALTER TABLE keeper_accounts ADD COLUMN {name} {kind}")
    _sql(home, "UPDATE keeper_accounts SET credit_usd = ?, credit_at = ?", usd, at.timestamp())


def shown(home: Path, clock: FakeClock) -> dict[str, Any]:
    run: dict[str, Any] = glance.run_document(home, "run00001", clock.now())
    return run


def text(home: Path, clock: FakeClock) -> str:
    return show.run_text(shown(home, clock), WIDE)


def _sql(home: Path, statement: str, *values: object) -> list[Any]:
    with sqlite3.connect(Places(home).database) as database:
        found = database.execute(statement, values).fetchall()
    database.close()
    return found


def local(moment: datetime) -> str:
    return show.local_time(moment.isoformat())


# Guards.


def test_each_guard_is_shown_with_the_age_of_what_is_known_of_it(
    tmp_path: Path, clock: FakeClock, vast: Story
) -> None:
    clock.advance(12)
    said = text(tmp_path, clock)
    assert f"vast's scheduler: armed (timer 1), ends it at {local(ONE)}; read back 0:12 ago" in said
    assert "keeper: armed (timer 1), ends it at " in said
    ages = [guard["read_back_age_s"] for guard in shown(tmp_path, clock)["guards"]]
    assert ages == [12.0, 12.0, 12.0]


def test_a_provider_s_timer_is_believed_for_half_an_hour(
    tmp_path: Path, clock: FakeClock, vast: Story
) -> None:
    def state() -> str:
        found = {guard["name"]: guard["state"] for guard in shown(tmp_path, clock)["guards"]}
        return str(found["provider"])

    clock.advance(1800)
    assert state() == "armed"
    clock.advance(1)
    assert state() == "unknown"
    guards(vast, fuse=1, provider=1)
    assert state() == "armed"


def test_the_provider_s_timer_is_the_last_word_when_nobody_else_is_alive(
    tmp_path: Path, clock: FakeClock, vast: Story
) -> None:
    clock.advance(600)
    run = shown(tmp_path, clock)
    assert run["timer"]["effective_by"] == "fuse", "not read lately, it can only come before"
    vast.journal.timers.guard(vast.label, "fuse", "refused")
    run = shown(tmp_path, clock)
    assert (run["timer"]["effective_by"], run["timer"]["effective_at"]) == (
        "provider",
        "2026-11-21T13:00:00.000Z",
    )
    assert "by vast's scheduler" in show.run_text(run, WIDE)


# If this machine dies.


def test_who_else_ends_the_bill_is_said_in_dollars(
    tmp_path: Path, clock: FakeClock, vast: Story
) -> None:
    """The fuse at 12:13; failing that Vast at one, 49 minutes at $7.56/h after the timer."""
    lost = shown(tmp_path, clock)["if_lost"]
    assert (lost["ended_by"], lost["ends_at"], lost["usd_more"]) == (
        ["fuse", "provider"],
        "2026-11-21T13:00:00.000Z",
        "6.18",
    )
    fuse_at = datetime(2026, 11, 21, 12, 13, tzinfo=UTC)
    assert (
        f"if this machine dies now, the fuse ends it at {local(fuse_at)}, failing that vast's "
        f"scheduler ends it at {local(ONE)} (+$6.18 at worst)"
    ) in text(tmp_path, clock)


def test_a_wallet_is_all_that_ends_a_pod_without_this_machine(
    tmp_path: Path, clock: FakeClock, prime: Story
) -> None:
    wallet(tmp_path, "41.20", clock.now())
    said = text(tmp_path, clock)
    assert (
        "run00001: one guard alone can end its bill now, the keeper; if this machine dies now, "
        "nothing else can end it: $8.76/h until the money is gone; your wallet holds $41.20"
    ) in said
    assert "fuse: armed (timer 1), ends its processes, not its bill, at " in said
    assert "stays on the box, which goes on" in said
    lost = shown(tmp_path, clock)["if_lost"]
    assert (lost["ended_by"], lost["ends_at"], lost["usd_more"]) == ([], None, None)
    assert lost["wallet_usd"] == "41.20"
    assert lost["wallet_read_at"] == "2026-11-21T12:00:00.000Z"
    assert "your wallet holds $41.20" in show.status_text(
        glance.status(tmp_path, clock.now()), WIDE
    )


def test_of_a_wallet_that_nobody_has_looked_into_that_is_said(
    tmp_path: Path, clock: FakeClock, prime: Story
) -> None:
    assert "what your wallet holds is not known here, `gpurun status --refresh` asks" in text(
        tmp_path, clock
    )


def test_a_fuse_with_a_key_of_the_user_s_is_a_second_guard_there(
    tmp_path: Path, clock: FakeClock, prime: Story
) -> None:
    prime.journal.timers.guard_ends_bill(prime.label, "fuse", True)
    said = text(tmp_path, clock)
    assert "one guard alone" not in said
    assert "if this machine dies now, the fuse ends it at " in said
    assert "(+$0.30 at worst)" in said


def test_one_guard_alone_is_warned_of_and_none_loudly(
    tmp_path: Path, clock: FakeClock, vast: Story
) -> None:
    assert "alone" not in text(tmp_path, clock)
    for name in ("fuse", "provider"):
        vast.journal.timers.guard(vast.label, name, "refused")
    assert "one guard alone can end its bill now, the keeper; if this machine dies" in text(
        tmp_path, clock
    )
    clock.advance(600)  # the keeper's beat is old by now
    assert "no guard of its timer is known to be alive" in text(tmp_path, clock)
    guards(vast, fuse=1, provider=None)
    vast.journal.timers.guard_ends_bill(vast.label, "fuse", False)
    vast.journal.timers.guard(vast.label, "provider", "refused")
    assert "no guard that can end its bill is known to be alive" in text(tmp_path, clock)


def test_a_fuse_alone_says_what_brings_the_keeper_back(
    tmp_path: Path, clock: FakeClock, vast: Story
) -> None:
    clock.advance(600)
    guards(vast, fuse=1, provider=1)
    vast.journal.timers.guard(vast.label, "provider", "refused")
    assert "one guard alone can end its bill now, the fuse. Run `gpurun keeper start`." in text(
        tmp_path, clock
    )


def test_where_nothing_bills_a_guard_that_is_alone_is_warned_of_and_no_bill(
    tmp_path: Path, clock: FakeClock
) -> None:
    story = Story(journal_at(tmp_path, clock), clock, provider="ssh:me@h:22")
    story.usd_per_hour = Decimal(0)
    story.rented().watched()
    assert "guards its box" not in text(tmp_path, clock), "until it is accepted"
    story.journal.runs.begin_phase(story.run_id, story.label, "setup", "", story.epoch)
    said = text(tmp_path, clock)
    assert "run00001: only the keeper guards its box; if it fails, nothing ends what" in said
    assert "alone" not in said and "dies now" not in said
    ends_at = clock.now() + timedelta(minutes=11)
    story.journal.timers.guard(story.label, "fuse", "armed", seq=1, ends_at=ends_at)
    assert "guards its box" not in text(tmp_path, clock)
    story.gone()
    assert shown(tmp_path, clock)["if_lost"] is None
    story.journal.close()


def test_an_account_that_the_keeper_cannot_see_is_a_trouble_while_a_run_lives_there(
    tmp_path: Path, clock: FakeClock, vast: Story
) -> None:
    assert glance.status(tmp_path, clock.now())["troubles"] == []
    vast.journal.keepers.not_listed("vast", "?", "vast does not let this key do the account")
    assert glance.status(tmp_path, clock.now())["troubles"] == [], "it was listed just now"
    clock.advance(121)
    [trouble] = glance.status(tmp_path, clock.now())["troubles"]
    assert trouble["provider"] == "vast"
    assert "its keeper could not look: vast does not let this key" in trouble["why"]
    vast.gone()
    assert glance.status(tmp_path, clock.now())["troubles"] == []


# Asked anew.


@pytest.mark.parametrize(("account", "usd"), [(USER_ID, "41.20"), ("another's", None)])
def test_a_refresh_looks_into_the_wallet_that_pays(
    home: Home, account: str, usd: str | None
) -> None:
    clock = SystemClock()
    with (
        cloud("prime", boxes=StubBoxes(), credit_usd=Decimal("41.20")) as api,
        hold(home.places.keeper_lock),
    ):
        home.open_account(api)
        journal = journal_at(home.places.root, clock)
        story = Story(journal, clock, provider="prime", usd_per_hour=Decimal(9)).rented()
        journal.keepers.beat("0.1.0")
        _sql(home.places.root, "UPDATE instances SET account_id = ?", account)
        journal.keepers.listed("prime", account)
        done = home.run("status", story.run_id, "--refresh", "--json")
        assert done.returncode == 0, done.stderr
        [run] = json.loads(done.stdout)["runs"]
        assert (run["if_lost"]["account_id"], run["if_lost"]["wallet_usd"]) == (account, usd)
        said = home.run("status", story.run_id, "--refresh").stdout
        journal.close()
    assert (f"your wallet holds ${usd}" in said) == (usd is not None)
