"""Messages that a service did not take: tried again, across restarts, as long as they matter."""

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr

from gpurun import glance, notify
from gpurun.clock import Deadline
from gpurun.glance.rows import iso
from gpurun.keeper import telling
from gpurun.keeper.news import News
from gpurun.keeper.post import Letter, Post
from gpurun.model import Ending, RunState
from gpurun.places import Places
from gpurun.provider import Traits
from gpurun.show import local_time
from gpurun.store import Journal, StoreError
from gpurun.store.told import Told
from tests.homes import WAITS, Home
from tests.inbox import Inbox
from tests.scene import Scene, noted

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    made = Inbox()
    yield made
    made.close()


@pytest.fixture
def scene(tmp_path: Path, inbox: Inbox) -> Iterator[Scene]:
    made = Scene(tmp_path, inbox)
    yield made
    made.journal.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.close()


def test_what_was_not_taken_is_tried_again_until_it_is_and_then_no_more(scene: Scene) -> None:
    scene.inbox.refuses = True
    scene.rented()
    assert scene.look() == []
    assert noted(scene, "notify failed")
    asked = scene.inbox.asked
    scene.look(after_s=3)
    assert scene.inbox.asked == asked, "its next try is after 10 s"
    scene.look(after_s=11)
    assert scene.inbox.asked == asked + 1
    scene.inbox.refuses = False
    scene.look(after_s=11)
    assert scene.inbox.titles == [], "and the one after that a minute later"
    assert scene.look(after_s=50) == ["gpurun: smoke has a box"]
    scene.fuse()
    assert scene.look(after_s=60) == ["gpurun: smoke has a box"]
    assert scene.inbox.asked == asked + 2


def test_a_keeper_that_is_restarted_goes_on_trying(scene: Scene) -> None:
    scene.inbox.refuses = True
    scene.rented()
    scene.look()
    scene.inbox.refuses = False
    scene.notices = scene.started()
    assert scene.look() == [], "it is not due"
    scene.notices = scene.started()
    assert scene.look() == ["gpurun: smoke has a box"]
    scene.notices = scene.started()
    assert scene.look(after_s=100) == ["gpurun: smoke has a box"]


def test_the_end_of_a_run_is_tried_again_after_a_restart(scene: Scene) -> None:
    scene.rented()
    scene.look()
    scene.inbox.refuses = True
    scene.story.gone()
    assert len(scene.look()) == 1
    scene.inbox.refuses = False
    scene.notices = scene.started()
    scene.look()
    assert scene.look(after_s=11)[1:] == ["gpurun: smoke is done"]
    assert len(scene.look(after_s=100)) == 2


def test_only_the_service_that_lacks_it_is_tried_again(scene: Scene) -> None:
    other = Inbox()
    urls = (SecretStr(scene.inbox.url), SecretStr(other.url))
    scene.settings = scene.settings.model_copy(update={"notify": urls})
    scene.notices = scene.started()
    other.refuses = True
    scene.rented()
    scene.look()
    other.refuses = False
    scene.look(after_s=11)
    other.close()
    assert scene.inbox.titles == other.titles == ["gpurun: smoke has a box"]


def test_what_has_ceased_to_matter_is_not_tried_again(scene: Scene) -> None:
    scene.inbox.refuses = True
    scene.rented()
    scene.look()
    scene.inbox.refuses = False
    scene.story.gone()
    scene.look()
    assert scene.look(after_s=11) == ["gpurun: smoke is done"]


def test_an_address_that_is_wrong_is_named_once_and_never_shown(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.inbox.refuses = True
    scene.rented()
    scene.look()
    scene.look(after_s=11)
    assert scene.inbox.asked == 2
    said = [record.message for record in caplog.records if "notify[1]" in record.message]
    assert len(said) == 1 and "notify[1] (json): it did not take the message" in said[0]
    shown = glance.keeper_document(scene.root, scene.clock.now())["notify"]
    assert "notify[1] (json): it did not take" in shown["trouble"]
    assert "hunter2" not in str(shown) + caplog.text


def test_the_pauses_grow_and_end_after_a_day() -> None:
    told = Told(NOON, NOON, tries=1, failures=1, missing=frozenset({1}))
    tried = []
    while (at := telling.again_at(told)) is not None:
        assert telling.silent({"started": told}, at - timedelta(seconds=1)) == {"started"}
        assert telling.silent({"started": told}, at) == set()
        tried.append((at - NOON).total_seconds())
        failures = told.failures + 1
        told = Told(NOON, at, tries=failures, failures=failures, missing=frozenset({1}))
    assert tried[:6] == [10, 70, 370, 1270, 4870, 8470]
    assert 20 < len(tried) < 30 and tried[-1] <= 86400
    assert telling.silent({"started": told}, NOON + timedelta(days=9)) == {"started"}


def test_what_is_on_its_way_when_a_keeper_dies_is_taken_for_sent(scene: Scene) -> None:
    scene.rented()
    assert scene.journal.tellings.claim([(scene.story.run_id, "started")])
    scene.notices = scene.started()
    assert scene.look(after_s=100) == []


def test_a_journal_that_is_locked_claims_nothing_and_forgets_no_failure(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.rented()
    scene.inbox.refuses = True
    impatient = Journal(Places(scene.root).database, scene.clock, busy_timeout_s=0.1)
    other = sqlite3.connect(impatient.database.path, check_same_thread=False, isolation_level=None)
    keys = [("run00001", "armed"), ("run00001", "stuck")]
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError):
        impatient.tellings.claim(keys)
    other.execute("ROLLBACK")
    scene.inbox.meanwhile = lambda: other.execute("BEGIN IMMEDIATE")
    post = Post(impatient)
    news = News("run00001", "armed", "armed", "it is")
    assert post.put(Letter(news, scene.settings))
    deadline = Deadline(120, poll_s=0.01)
    while "database is locked" not in caplog.text and not deadline.passed():
        pass
    other.execute("ROLLBACK")
    other.close()
    while post.working() and not deadline.passed():
        pass
    told = scene.journal.tellings.of("run00001")
    assert {key: each.failures for key, each in told.items() if key in ("armed", "stuck")} == {
        "armed": 1
    }
    assert post.missed.get_nowait() == "run00001"
    impatient.close()


def test_a_message_survives_the_keeper_that_could_not_send_it(home: Home, inbox: Inbox) -> None:
    inbox.refuses = True
    home.config.write_text(f'notify = ["{inbox.url}"]\nnotify_on = ["started"]\n')
    home.config.chmod(0o600)
    run = home.up(home.recipe(train=WAITS, run_minutes=5))
    home.until(lambda: "notify[1] (json): it did not take" in home.logs())
    home.until(lambda: bool(missed(home, run)))
    inbox.refuses = False
    home.kill_keeper()
    assert home.run("keeper", "start").returncode == 0
    home.until(lambda: bool(inbox.titles), 120)
    assert inbox.titles == ["gpurun: tiny has a box"]
    assert home.run("kill", run, "--yes", "--no-collect").returncode == 0
    assert inbox.titles == ["gpurun: tiny has a box"]


def unproven(scene: Scene) -> None:
    scene.journal.endings.end_run(scene.story.run_id, Ending.KILL, "killed", 0)
    scene.journal.runs.finish(scene.story.run_id, RunState.STILL_BILLING, 10, "not proven")


def test_what_still_bills_is_told_anew_and_louder_until_it_is_proven_gone(scene: Scene) -> None:
    scene.rented()
    scene.look()
    unproven(scene)
    assert scene.look()[1:] == ["gpurun: smoke is STILL BILLING"]
    since = scene.clock.now()
    for minutes, marks in ((1, "!"), (5, "!!"), (15, "!!!"), (60, "!!!!"), (120, "!!!!!")):
        early_s = (since - scene.clock.now()).total_seconds() + 60 * minutes - 10
        count = len(scene.look(after_s=early_s))
        titles = scene.look(after_s=11)
        assert len(titles) == count + 1
        begin, _, end = titles[-1].partition("$")
        assert begin == "gpurun: smoke is STILL BILLING, " and end.endswith(f" by now{marks}")
    last = scene.inbox.messages[-1]
    assert (last["type"], scene.inbox.messages[0]["type"]) == ("failure", "info")
    assert "`gpurun kill run00001`" in last["message"]
    assert "destroy instance i-1 in the console of local" in last["message"]
    assert "$7.2" in last["title"], "two hours at $3.60"
    scene.story.gone()
    assert scene.look(after_s=3600)[-1] == "gpurun: smoke is done"
    count = len(scene.inbox.titles)
    assert len(scene.look(after_s=3600)) == count


def test_what_a_keeper_slept_through_is_told_once(scene: Scene) -> None:
    scene.rented()
    scene.look()
    unproven(scene)
    scene.look()
    scene.notices = scene.started()
    assert len(scene.look(after_s=5 * 3600)) == 3
    assert len(scene.look(after_s=1800)) == 3
    assert len(scene.look(after_s=1800)) == 4


def test_a_box_that_is_back_after_its_run_was_done_is_told_until_it_is_gone(scene: Scene) -> None:
    scene.rented()
    scene.story.gone()
    scene.look()
    scene.journal.attempts.reappeared(scene.story.label)
    assert scene.look()[-1] == "gpurun: smoke is STILL BILLING"
    assert scene.look(after_s=61)[-1].endswith("by now!")


def test_a_failed_box_that_is_kept_is_told_with_until_when_and_for_how_much(scene: Scene) -> None:
    scene.rented()
    scene.armed()
    scene.look()
    story = scene.story
    kept = scene.journal.keeping.keep(
        story.run_id,
        story.label,
        story.epoch,
        keep_s=1800,
        grace_s=60,
        traits=Traits(settle_window_s=120, proof_gap_s=20, tail_s=0, fuse_ends_bill=True),
        error="data failed: exit 3",
        exit_code=5,
    )
    assert kept is not None
    told = scene.look()[-1]
    assert told == f"gpurun: smoke has failed and is kept until {local_time(iso(kept.fires_at))}"
    says = scene.inbox.messages[-1]["message"]
    assert says.startswith(
        "data failed: exit 3\nUntil its box is gone it costs $1.86 more at most."
    )
    assert "`gpurun ssh run00001`" in says and "`gpurun kill run00001`" in says
    count = len(scene.inbox.titles)
    assert len(scene.look()) == count


def missed(home: Home, run: str) -> list[str]:
    journal = home.journal()
    try:
        told = journal.tellings.of(run)
        return [key for key, each in told.items() if not each.over]
    finally:
        journal.close()


def test_the_events_are_those_of_the_documents() -> None:
    text = (Path(__file__).parents[1] / "docs" / "keeper.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in row.split("|")[1].replace("`", "").split()]
    assert [name for name in named if name in notify.EVENTS] == list(notify.EVENTS)
