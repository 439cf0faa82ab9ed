"""`extend`: what it shows, what it moves, and all that it refuses."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from gpurun import web
from gpurun.blackbox import BlackBox
from gpurun.engine import extending
from gpurun.engine.context import Context
from gpurun.engine.guarding import Others
from gpurun.errors import BudgetError, ProviderError, UsageError
from gpurun.guards import at_provider
from gpurun.model import Attempt, Need, Order
from gpurun.provider import ProviderTimer
from gpurun.recipe import load
from gpurun.settings import Settings
from provisioners.vast import Vast
from tests.clouds.clock import Clock
from tests.clouds.serve import Cloud, cloud
from tests.clouds.stub import StubBoxes
from tests.clouds.vast.world import VastWorld
from tests.fakecloud import FakeClock
from tests.homes import WAITS, Home
from tests.stories import Story, journal_at

START = datetime(2026, 11, 21, 12, 20, tzinfo=UTC)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.close()


def test_a_run_is_extended_within_its_money_and_the_caps_on_every_guard(home: Home) -> None:
    run = home.up(home.recipe(train=WAITS, run_minutes=20))
    home.until_phase(run, "train")
    before = home.document(run)["timer"]
    for by in ("-5m", "1e9h"):
        refused = home.run("extend", run, "--yes", "--", by)
        assert refused.returncode == 2, by
        assert "is not a duration between 0 and 90 days" in refused.stderr
    assert "--yes" in home.run("extend", run, "10m").stderr
    refused = home.run("extend", run, "9h", "--yes")
    assert refused.returncode == 3
    most = re.search(rf"budget.max_usd \$10.00: .*`gpurun extend {run} (1\d\dm)`", refused.stderr)
    assert most is not None, refused.stderr  # a hundred and some minutes
    home.config.write_text("max_usd_per_day = 3\n")
    refused = home.run("extend", run, "60m", "--yes")
    assert refused.returncode == 3
    assert "left of max_usd_per_day $3.00: nothing was changed" in refused.stderr
    assert "Or raise max_usd_per_day in the settings." in refused.stderr
    assert home.document(run)["timer"]["seq"] == before["seq"]
    done = home.run("extend", run, "10m", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    # 30 minutes, 12 s of grace and the fuse's 2 minutes at $3.60 an hour, and the setup before.
    assert 1.93 < float(said["ceiling_usd"]) <= 3
    assert f"may cost up to ${said['ceiling_usd']} of $10.00" in said["said"]
    timer = said["run"]["timer"]
    assert timer["seq"] > before["seq"]
    assert {guard["seq"] for guard in home.document(run)["guards"]} == {timer["seq"]}
    home.config.write_text("")
    assert home.run("extend", run, most[1], "--yes").returncode == 3  # ten of them are taken
    less = f"{int(most[1][:-1]) - 10}m"
    assert home.run("extend", run, less, "--yes").returncode == 0
    assert home.run("kill", run, "--yes", "--no-collect").returncode == 0
    late = home.run("extend", run, "10m", "--yes")
    assert late.returncode == 2
    assert "it is killed" in late.stderr


@pytest.mark.timeout(900)
def test_new_money_is_given_by_name_and_written_down(home: Home) -> None:
    run = home.up(home.recipe(train=WAITS, run_minutes=60))
    home.until_phase(run, "train", within_s=180)
    poor = home.run("extend", run, "9h", "--yes")
    assert poor.returncode == 3
    enough = re.search(rf"`gpurun extend {run} TIME --max-usd (\d+)`", poor.stderr)
    assert enough is not None, poor.stderr
    for wrong, code, said in (
        ("-30", 2, "'-30' is no amount of dollars between 0 and 1000000"),
        ("9.99", 2, f"run {run} may cost $10.00 already, and $"),
        (f"{int(enough[1]) - 1}", 3, f"--max-usd {enough[1]}`"),
    ):
        refused = home.run("extend", run, "9h", "--yes", "--max-usd", wrong)
        assert (refused.returncode, said in refused.stderr) == (code, True), refused.stderr
    home.config.write_text("max_usd = 12\n")
    refused = home.run("extend", run, "9h", "--yes", "--max-usd", enough[1])
    assert refused.returncode == 3
    assert "is more than max_usd $12.00 of the settings" in refused.stderr
    home.config.write_text("max_usd_per_day = 20\n")
    refused = home.run("extend", run, "9h", "--yes", "--max-usd", enough[1])
    assert refused.returncode == 3
    assert "left of max_usd_per_day $20.00: nothing was changed" in refused.stderr
    assert home.document(run)["budget_usd"] == "10.00"
    home.config.write_text("")
    done = home.run("extend", run, "9h", "--yes", "--max-usd", enough[1])
    assert done.returncode == 0, done.stderr
    assert f"of ${enough[1]}.00, raised from $10.00" in done.stdout
    assert home.document(run)["budget_usd"] == f"{enough[1]}.00"
    again = home.run("extend", run, "1m", "--yes")  # within what it has now
    assert again.returncode in (0, 3)
    assert home.document(run)["budget_usd"] == f"{enough[1]}.00"
    assert home.run("kill", run, "--yes", "--no-collect").returncode == 0
    late = home.run("extend", run, "10m", "--yes", "--max-usd", "99")
    assert late.returncode == 2
    said = f"raised: budget.max_usd from $10.00 to ${enough[1]}.00, by gpurun extend"
    assert said in home.run("report", run).stdout


@pytest.mark.timeout(900)
def test_a_run_that_is_set_up_is_armed_by_the_money_that_it_was_given_since(home: Home) -> None:
    """Its driver has read the recipe long before."""
    build = "until [ -e go ]; do sleep 0.1; done; mkdir -p data/train data/test"
    build += "; touch data/train/dataset.json data/test/dataset.json"
    run = home.up(home.recipe(build=build, train=WAITS, setup_minutes=20, run_minutes=300))
    home.until_phase(run, "data", within_s=180)
    done = home.run("extend", run, "1m", "--yes", "--max-usd", "40")
    assert done.returncode == 0, done.stderr
    [box] = home.places.boxes.glob("gpurun-*")
    (next(iter(box.rglob(".gpurun"))).parent / "go").touch()
    home.until_phase(run, "train", within_s=180)
    timer = home.document(run)["timer"]
    assert timer["kind"] == "run"
    assert timer["remaining_s"] > 290 * 60  # $10 pay for 160
    assert home.run("kill", run, "--yes", "--no-collect").returncode == 0


class AtVast:
    """A run that is set up on a box until 12:51; Vast's own timer for it is at 13:00."""

    def __init__(self, market: Cloud, home: Home) -> None:
        self.market = market
        self.clock = FakeClock(START)
        vast = Vast(web.client("vast", market.url, market.api_key, (), self.clock), self.clock)
        journal = journal_at(home.places.root, self.clock)
        self.story = Story(journal, self.clock, provider="vast").rented(minutes=30)
        offer = next(iter(vast.offers(Need("H100", 4, 100))))
        order = Order(offer, Need("H100", 4, 100), self.story.label, START, START, Decimal(10))
        journal.attempts.made(self.story.label, vast.create(order).instance_id, "answer")
        market.advance(1)
        self.ctx = Context(
            home.places,
            Settings(),
            self.clock,
            journal,
            BlackBox(home.places.blackbox, *journal.owner.ensure()),
            journal.runs.get(self.story.run_id),
            load(str(home.recipe()), provider="vast"),
            lambda _name: vast,
            self.story.epoch,
        )
        guard = at_provider(vast, self.attempt, journal)
        timer = journal.timers.of(self.story.label)
        assert guard is not None and timer is not None
        assert guard.arm(timer) == ""
        self.guards = Others(scheduled=guard)

    @property
    def attempt(self) -> Attempt:
        return self.ctx.journal.attempts.get(self.story.label)

    def extend(self, hours: float) -> None:
        extending.extend(self.ctx, self.attempt, self.guards, hours * 3600)

    def held(self) -> list[str]:
        """When Vast will send its DELETE."""
        world = self.market.world
        assert isinstance(world, VastWorld)
        return [f"{job.start:%H:%M}" for job in world.jobs.values()]

    def ends_at(self) -> str:
        timer = self.ctx.journal.timers.of(self.story.label)
        assert timer is not None
        return f"{timer.ends_at:%H:%M}"


@pytest.fixture
def at_vast(home: Home) -> Iterator[AtVast]:
    with cloud("vast", boxes=StubBoxes(), clock=Clock(START, rate=0)) as market:
        told = AtVast(market, home)
        yield told
        told.ctx.journal.close()


def test_the_timer_at_the_provider_is_moved_too(at_vast: AtVast) -> None:
    assert (at_vast.held(), at_vast.ends_at()) == (["13:00"], "12:51")
    at_vast.extend(hours=1)
    assert (at_vast.held(), at_vast.ends_at()) == (["14:00"], "13:51")


class LosesTouch(Vast):
    """Its schedules answer until one is to be moved."""

    def __init__(self, market: Cloud, clock: FakeClock) -> None:
        super().__init__(web.client("vast", market.url, market.api_key, (), clock), clock)
        self._market = market

    def arm_provider_timer(self, instance_id: str, ends_at: datetime) -> ProviderTimer | None:
        self._market.fault("server_error", endpoint="schedules")
        return super().arm_provider_timer(instance_id, ends_at)


def test_a_guard_that_was_not_moved_is_named_with_what_that_means(at_vast: AtVast) -> None:
    journal, attempt = at_vast.ctx.journal, at_vast.attempt
    guard = at_provider(LosesTouch(at_vast.market, at_vast.clock), attempt, journal)
    at_vast.guards = Others(scheduled=guard)
    # Forty minutes and the six of Vast's tail, at $3.60 an hour.
    said = (
        "the keeper now ends run run00001 at 13:51 UTC, but its timer at vast could not be told: "
        r"it fires at 13:00 UTC, so the run ends at 12:58 UTC, 53 minutes sooner, for \$2.76 "
        "at most. The keeper tries again every few seconds: `gpurun status run00001` shows"
    )
    with pytest.raises(ProviderError, match=said):
        at_vast.extend(hours=1)
    assert (at_vast.held(), at_vast.ends_at()) == (["13:00"], "13:51")


def test_a_timer_that_is_not_seen_to_be_held_is_a_guard_less(at_vast: AtVast) -> None:
    at_vast.market.fault("schedule_answer_lost", when="before")
    said = "its timer at vast could not be told: until the keeper has armed it again the run has"
    with pytest.raises(ProviderError, match=said):
        at_vast.extend(hours=1)
    assert (at_vast.held(), at_vast.ends_at()) == ([], "13:51")


def test_a_provider_whose_timer_cannot_be_read_changes_nothing(at_vast: AtVast) -> None:
    at_vast.market.fault("server_error", endpoint="schedules")
    with pytest.raises(ProviderError, match=r"cannot be read now: nothing .*; try again"):
        at_vast.extend(hours=1)
    assert (at_vast.held(), at_vast.ends_at()) == (["13:00"], "12:51")


def test_a_provider_that_is_about_to_end_the_box_is_not_overtaken(at_vast: AtVast) -> None:
    at_vast.clock.advance(38 * 60)
    with pytest.raises(UsageError, match="fires at 13:00 UTC, too soon"):
        at_vast.extend(hours=1)
    assert (at_vast.held(), at_vast.ends_at()) == (["13:00"], "12:51")


def test_more_than_the_credit_pays_for_is_not_promised(at_vast: AtVast) -> None:
    at_vast.market.world.deposited_usd = Decimal(9)
    with pytest.raises(
        BudgetError, match=r"may need \$\d+\.\d\d from now on, and the credit at vast"
    ):
        extending.extension(at_vast.ctx, at_vast.attempt, 9 * 3600, Decimal(90))
    at_vast.market.world.deposited_usd = Decimal(90)
    wanted = extending.extension(at_vast.ctx, at_vast.attempt, 9 * 3600, Decimal(90))
    assert (wanted.budget_before_usd, wanted.budget_usd) == (10, 90)
