"""A key that is replaced reaches those who live longer than it: the keeper, and drivers."""

import json
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpurun import keystore
from gpurun import settings as configuration
from gpurun.clock import SystemClock
from gpurun.engine.context import open_context
from gpurun.engine.driver import Driver
from gpurun.engine.rent import rent
from gpurun.errors import GpurunError, UsageError
from gpurun.keeper import handed
from gpurun.keeper.clouds import LOOK_EVERY_S, Clouds
from gpurun.keeper.handed import Keys
from gpurun.locks import hold
from gpurun.model import RunState
from gpurun.provider import Provisioner
from gpurun.recipe import load
from gpurun.signals import TOLD
from tests.clouds.serve import Cloud, cloud
from tests.clouds.stub import StubBoxes
from tests.fakecloud import FakeClock
from tests.homes import Home
from tests.stories import Story, journal_at

NEW = "hunter2-new"
PATIENCE_S = 180


@pytest.fixture(scope="module")
def market() -> Iterator[Cloud]:
    with cloud("vast", boxes=StubBoxes()) as running:
        yield running


@pytest.fixture
def vast(market: Cloud, home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """Its key is in the settings; what this process asks is asked as this home would."""
    before = market.world.api_key
    home.open_account(market)
    for name in ("VAST_API_KEY", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "GPURUN_HOME", "GPURUN_CONFIG", "VAST_URL"):
        monkeypatch.setenv(name, home.env[name])
    yield market
    market.world.api_key = before


def clouds(home: Home, clock: FakeClock) -> Clouds:
    return Clouds(home.places, configuration.load(), clock)


def rotate(vast: Cloud) -> None:
    """The account has another key; the old one is nobody's."""
    vast.world.api_key = NEW


def answers(asked: Provisioner) -> bool:
    try:
        return bool(asked.account())
    except GpurunError:
        return False


def test_a_provider_is_made_once_while_its_key_stays(home: Home, vast: Cloud) -> None:
    clock = FakeClock()
    known = clouds(home, clock)
    first = known("vast")
    clock.advance(LOOK_EVERY_S)
    keystore.store(home.config, "prime", "another cloud's")
    assert known("vast") is first


def test_the_new_key_is_used_within_seconds_once_it_is_stored(home: Home, vast: Cloud) -> None:
    clock = FakeClock()
    known = clouds(home, clock)
    assert answers(known("vast"))
    rotate(vast)
    clock.advance(LOOK_EVERY_S)
    assert not answers(known("vast"))
    keystore.store(home.config, "vast", NEW)
    clock.advance(LOOK_EVERY_S)
    assert answers(known("vast"))


@pytest.mark.parametrize("damage", ["not TOML [", "", '[keys]\nvast = "ümlaut"\n'])
def test_a_key_that_is_lost_or_cannot_be_one_leaves_the_old_one(
    home: Home, vast: Cloud, damage: str
) -> None:
    clock = FakeClock()
    known = clouds(home, clock)
    first = known("vast")
    home.config.write_text(damage)
    clock.advance(LOOK_EVERY_S)
    assert known("vast") is first
    assert answers(first)


def test_a_wrong_line_keeps_no_new_key_back(home: Home, vast: Cloud) -> None:
    clock = FakeClock()
    known = clouds(home, clock)
    assert answers(known("vast"))
    rotate(vast)
    home.config.write_text(f'nonsense = 1\n[keys]\nvast = "{NEW}"\n')
    clock.advance(LOOK_EVERY_S)
    assert answers(known("vast"))


def test_the_provider_of_a_driver_has_the_newest_key(home: Home, vast: Cloud) -> None:
    clock = FakeClock()
    journal = journal_at(home.places.root, clock)
    recipe = json.dumps(load(str(home.recipe()), provider="vast").to_dict())
    run = replace(Story(journal, clock, provider="vast").run(), recipe_json=recipe)
    journal.runs.add(run)
    journal.close()
    ctx = open_context(run.id, home.places, configuration.load(), clock)
    rotate(vast)
    keystore.store(home.config, "vast", NEW)
    clock.advance(LOOK_EVERY_S)
    assert answers(ctx.cloud)
    ctx.journal.close()


@pytest.fixture
def handed_over(home: Home, vast: Cloud) -> Iterator[Keys]:
    """The key is in no settings, but in memory."""
    home.config.write_text("")
    keys = {"VAST_API_KEY": vast.api_key, "VAST_URL": vast.url}
    handed.hand(home.places, "vast", keys)
    yield {"vast": keys}
    handed.forget(home.places)


def test_what_was_handed_over_is_kept_when_its_file_goes_until_another_key_is_stored(
    home: Home, vast: Cloud, handed_over: Keys
) -> None:
    clock = FakeClock()
    known = clouds(home, clock)
    assert answers(known("vast"))
    assert answers(known("local"))
    handed.forget(home.places)
    clock.advance(LOOK_EVERY_S)
    assert answers(known("vast"))
    assert known.environ().items() >= handed_over["vast"].items()
    keystore.store(home.config, "vast", NEW)
    clock.advance(LOOK_EVERY_S)
    known("vast")
    assert "VAST_API_KEY" not in known.environ()


def run_at_vast(home: Home, options: str = "{}") -> str:
    """In the journal; nobody drives it."""
    clock = SystemClock()
    journal = journal_at(home.places.root, clock)
    recipe = json.dumps(load(str(home.recipe()), provider="vast").to_dict())
    run = Story(journal, clock, provider="vast").run()
    journal.runs.add(replace(run, recipe_json=recipe, options_json=options))
    journal.close()
    return run.id


def test_a_driver_ends_its_run_though_the_key_has_gone_meanwhile(
    home: Home, vast: Cloud, handed_over: Keys
) -> None:
    run = run_at_vast(home)
    ctx = open_context(run, home.places, configuration.load(), SystemClock())
    handed.forget(home.places)
    before = signal.getsignal(TOLD)
    try:
        Driver(ctx, may_rent=False).go()
    finally:
        signal.signal(TOLD, before)
    found = ctx.journal.runs.get(run)
    assert (found.state, found.error[:18]) == (RunState.FAILED, "nothing is rented,")
    ctx.journal.close()


def test_one_purchase_has_one_provider_and_none_is_made_at_another_account_than_the_plans(
    home: Home, vast: Cloud
) -> None:
    run = run_at_vast(home, '{"account_id": "another"}')
    ctx = open_context(run, home.places, configuration.load(), SystemClock())
    asked: list[str] = []

    def counted(name: str) -> Provisioner:
        asked.append(name)
        return ctx.clouds(name)

    with pytest.raises(UsageError, match="the plan was made for vast account another") as refused:
        rent(replace(ctx, clouds=counted), print)
    assert "nothing was rented" in str(refused.value)
    assert asked == ["vast"]
    assert ctx.attempt() is None
    ctx.journal.close()


def test_a_keeper_that_runs_lists_again_with_the_key_that_is_stored_now(
    home: Home, vast: Cloud
) -> None:
    rotate(vast)
    journal = journal_at(home.places.root, SystemClock())
    run = Story(journal, SystemClock(), provider="vast").begun().run_id

    def listed() -> list[bool]:
        return [each.auth_ok for each in journal.keepers.accounts()]

    with hold(home.places.run_lock(run)):  # a driver that does nothing
        assert home.run("keeper", "start").returncode == 0
        home.until(lambda: listed() == [False], PATIENCE_S)
        pid = home.run("keeper", "start", "--json").stdout
        keystore.store(home.config, "vast", NEW)
        home.until(lambda: True in listed(), PATIENCE_S)
        assert home.run("keeper", "start", "--json").stdout == pid
    assert NEW not in home.logs()
    journal.close()
