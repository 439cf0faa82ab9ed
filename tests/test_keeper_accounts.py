"""What the keeper writes of an account, for a `status` that asks nobody."""

import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from gpurun import glance
from gpurun.blackbox import BlackBox
from gpurun.clock import Deadline
from gpurun.errors import ProviderError
from gpurun.glance.reader import Reader
from gpurun.keeper.lists import Lists
from gpurun.model import Instance, Need, Order
from gpurun.places import Places
from gpurun.settings import Settings
from gpurun.store import Journal
from tests.fakecloud import FakeClock, FakeCloud
from tests.stories import Story, journal_at


class Wallet(FakeCloud):
    """A cloud of prepaid credit; None: it refuses to say how much."""

    credit: Decimal | None = Decimal("41.20")
    asked = 0
    lists = 0

    def instances(self) -> list[Instance]:
        self.lists += 1
        return super().instances()

    def credit_usd(self) -> Decimal | None:
        self.asked += 1
        if self.credit is None:
            raise ProviderError("fake: this key may not see the wallet")
        return self.credit


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cloud(clock: FakeClock) -> Wallet:
    return Wallet(clock)


@pytest.fixture
def journal(tmp_path: Path, clock: FakeClock) -> Iterator[Journal]:
    found = journal_at(tmp_path, clock)
    yield found
    found.close()


@pytest.fixture
def lists(tmp_path: Path, cloud: Wallet, clock: FakeClock, journal: Journal) -> Lists:
    blackbox = BlackBox(Places(tmp_path).blackbox, *journal.owner.ensure())
    return Lists(lambda _name: cloud, clock, journal, blackbox, Settings())


def look(lists: Lists, clock: FakeClock, after_s: float = 31) -> None:
    clock.advance(after_s)
    lists.step(["fake"])
    deadline = Deadline(10)
    while lists.working():
        assert not deadline.passed()


def wallet(home: Path) -> tuple[str | None, float | None]:
    with Reader(home / "gpurun.db") as reader:
        [row] = reader.rows("keeper_accounts")
    return row["credit_usd"], row["credit_at"]


def test_what_is_left_to_spend_is_written_now_and_then(
    tmp_path: Path, clock: FakeClock, cloud: Wallet, lists: Lists
) -> None:
    look(lists, clock)
    first_at = clock.now().timestamp()
    assert wallet(tmp_path) == ("41.20", first_at)
    cloud.credit = Decimal("40.10")
    look(lists, clock)
    assert (wallet(tmp_path), cloud.asked) == (("41.20", first_at), 1)
    look(lists, clock, 300)
    assert (wallet(tmp_path), cloud.asked) == (("40.10", clock.now().timestamp()), 2)


def test_a_wallet_that_may_not_be_seen_makes_the_keeper_no_less_of_a_guard(
    tmp_path: Path, clock: FakeClock, cloud: Wallet, lists: Lists, journal: Journal
) -> None:
    cloud.credit = None
    look(lists, clock)
    assert wallet(tmp_path) == (None, None)
    [account] = journal.keepers.accounts()
    assert account.auth_ok and account.listed_at == clock.now()


def test_an_orphan_is_written_with_all_that_orphans_shows_of_it(
    tmp_path: Path, clock: FakeClock, cloud: Wallet, lists: Lists
) -> None:
    offer = next(iter(cloud.offers(Need(None, 0, 10))))
    cloud.create(Order(offer, Need(None, 0, 10), "mine", clock.now(), clock.now(), Decimal(10)))
    look(lists, clock)
    [orphan] = glance.status(tmp_path, clock.now())["orphans"]
    assert tuple(orphan) == glance.ORPHAN_KEYS
    assert (orphan["whose"], orphan["state"], orphan["usd_per_hour"]) == (
        "foreign",
        "starting",
        "1.89",
    )


def by_hand(home: Path, statement: str) -> None:
    with sqlite3.connect(home / "gpurun.db") as other:
        other.execute(statement)
    other.close()


def test_a_list_that_cannot_be_written_is_no_list_and_is_asked_for_soon(
    tmp_path: Path, clock: FakeClock, cloud: Wallet, lists: Lists, journal: Journal
) -> None:
    refuse = "BEGIN SELECT RAISE(ABORT, 'database is locked'); END"
    by_hand(
        tmp_path, f"CREATE TRIGGER no BEFORE INSERT ON keeper_accounts WHEN NEW.auth_ok {refuse}"
    )
    look(lists, clock)
    [account] = journal.keepers.accounts()
    assert not account.auth_ok and "database is locked" in account.detail
    look(lists, clock, 6)
    assert cloud.lists == 2


def test_a_list_stands_though_a_damaged_row_keeps_it_from_being_compared(
    tmp_path: Path, clock: FakeClock, cloud: Wallet, lists: Lists, journal: Journal
) -> None:
    Story(journal, clock, provider="fake").rented()
    by_hand(tmp_path, "UPDATE instances SET usd_per_hour = '2,0'")
    look(lists, clock)
    [account] = journal.keepers.accounts()
    assert account.auth_ok and lists.has_answered("fake")
    look(lists, clock, 6)
    assert cloud.lists == 1
