"""50, 80 and 95 % of the caps of a day and a month: in `status` and as a message, once each."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from gpurun import glance, show
from gpurun.keeper.caps import all_caps
from gpurun.settings import Settings
from gpurun.store.ledger import Caps
from tests.fakecloud import FakeClock
from tests.homes import WAITS, Home
from tests.inbox import Inbox
from tests.scene import Scene
from tests.stories import Story


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    made = Inbox()
    yield made
    made.close()


@pytest.fixture
def scene(tmp_path: Path, inbox: Inbox) -> Iterator[Scene]:
    made = Scene(tmp_path, inbox, on=("50%", "80%", "95%"))
    yield made
    made.journal.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.close()


def capped(scene: Scene, **caps: object) -> None:
    scene.settings = scene.settings.model_copy(update=caps)
    scene.notices = scene.started()


def reserved(scene: Scene, run_id: str, usd: str, provider: str = "local") -> Story:
    """A box of $3.60 an hour."""
    story = Story(scene.journal, scene.clock, run_id, provider=provider).begun()
    attempts, timer = scene.journal.attempts, story.timer(1, 600)
    caps = Caps(Decimal(1000))
    attempts.intend(story.attempt(), timer, [], Decimal(usd), caps, story.epoch)
    attempts.sending(story.label, story.epoch)
    attempts.made(story.label, f"i-{run_id}", "answer")
    attempts.seen(story.label, scene.clock.now(), None)
    return story


def told(scene: Scene) -> list[str]:
    scene.look(after_s=25)
    return [title.removeprefix("gpurun: ") for title in scene.inbox.titles if "reserved" in title]


def shown(scene: Scene) -> list[str]:
    text = show.status_text(glance.status(scene.root, scene.clock.now()), show.Look())
    return [line.split(" at ")[0] for line in text.splitlines() if "spent or reserved" in line]


def test_of_a_day_each_mark_is_told_once_and_shown_as_long_as_it_holds(scene: Scene) -> None:
    capped(scene, max_usd_per_day=Decimal(10))
    reserved(scene, "run00001", "4.00")
    assert (told(scene), shown(scene)) == ([], [])
    second = reserved(scene, "run00002", "4.20")
    once = ["80% of max_usd_per_day is spent or reserved"]
    assert told(scene) == once, "the lower mark is no news"
    assert shown(scene) == ["max_usd_per_day: 80 % of it is spent or reserved, $8.20 of $10.00"]
    assert "$8.20 of $10.00 of all runs together" in scene.inbox.messages[-1]["message"]
    second.gone()
    assert (told(scene), shown(scene)) == (once, [])
    reserved(scene, "run00003", "4.20")
    scene.notices = scene.started()
    assert told(scene) == once
    assert len(shown(scene)) == 1
    reserved(scene, "run00004", "1.50")
    assert told(scene) == [*once, "95% of max_usd_per_day is spent or reserved"]


def test_the_next_day_has_marks_of_its_own(scene: Scene) -> None:
    capped(scene, max_usd_per_day=Decimal(10))
    reserved(scene, "run00001", "6").gone()
    reserved(scene, "run00002", "6")
    once = ["50% of max_usd_per_day is spent or reserved"]
    assert told(scene) == once
    scene.clock.advance(86400)
    document = glance.status(scene.root, scene.clock.now())
    assert document["caps"] == [], "it was of yesterday"
    assert told(scene)[1:] != []


def test_of_a_provider_only_what_was_rented_there_counts(scene: Scene) -> None:
    capped(
        scene,
        max_usd_per_month=Decimal(100),
        max_usd_per_month_at={"vast": Decimal(10), "local": Decimal(10)},
    )
    reserved(scene, "run00001", "9.60", provider="vast")
    assert told(scene) == ["95% of max_usd_per_month_at.vast is spent or reserved"]
    assert [line.partition(":")[0] for line in shown(scene)] == ["max_usd_per_month_at.vast"]


def test_a_cap_that_is_raised_or_removed_is_shown_as_it_is_now(scene: Scene) -> None:
    capped(scene, max_usd_per_day=Decimal(10))
    reserved(scene, "run00001", "8.50")
    told(scene)
    capped(scene, max_usd_per_day=Decimal(16))
    assert told(scene)[1:] == ["50% of max_usd_per_day is spent or reserved"]
    assert shown(scene) == ["max_usd_per_day: 50 % of it is spent or reserved, $8.50 of $16.00"]
    capped(scene, max_usd_per_day=None)
    told(scene)
    assert shown(scene) == []


def test_a_mark_that_was_not_taken_is_tried_again(scene: Scene) -> None:
    capped(scene, max_usd_per_day=Decimal(10))
    scene.inbox.refuses = True
    reserved(scene, "run00001", "6")
    assert told(scene) == []
    text = show.status_text(glance.status(scene.root, scene.clock.now()), show.Look())
    assert "notifications fail: notify[1] (json): it did not take the message" in text
    assert "hunter2" not in text
    scene.inbox.refuses = False
    once = ["50% of max_usd_per_day is spent or reserved"]
    assert told(scene) == once
    assert told(scene) == once
    text = show.status_text(glance.status(scene.root, scene.clock.now()), show.Look())
    assert "notifications" not in text


def test_a_damaged_row_hides_no_mark(scene: Scene) -> None:
    for detail in ("{", "[]", '{"name": 5}', '"max_usd_per_day"', '{"name": "x", "until": 7}'):
        scene.journal.runs.event("", "cap", detail)
    capped(scene, max_usd_per_day=Decimal(10))
    reserved(scene, "run00001", "6")
    assert told(scene) == ["50% of max_usd_per_day is spent or reserved"]
    assert len(shown(scene)) == 1


def test_all_caps_are_looked_at_each_once() -> None:
    found = all_caps(
        Settings(
            max_usd_per_day=Decimal(5),
            max_usd_per_day_at={"vast": Decimal(1), "ssh": Decimal(2)},
            max_usd_per_month_at={"vast": Decimal(3)},
        ),
        FakeClock().now(),
    )
    assert sorted(cap.name for cap in found) == [
        "max_usd_per_day",
        "max_usd_per_day_at.ssh",
        "max_usd_per_day_at.vast",
        "max_usd_per_month_at.vast",
    ]


def test_a_keeper_notes_what_a_run_reserves_of_the_day(home: Home, inbox: Inbox) -> None:
    home.config.write_text(
        f'notify = ["{inbox.url}"]\nnotify_on = ["80%"]\nmax_usd_per_day = 4.5\n'
    )
    home.config.chmod(0o600)
    run = home.up(home.recipe(train=WAITS, run_minutes=60))  # $4.03 at most
    home.until(lambda: "80% of max_usd_per_day" in inbox.text, 120)
    assert "max_usd_per_day: 80 % of it is spent or reserved" in home.run("status").stdout
    assert home.run("kill", run, "--yes", "--no-collect").returncode == 0
