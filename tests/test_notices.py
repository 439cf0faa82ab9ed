"""Messages to a person: found in a journal, sent once to a service that listens here."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from pydantic import SecretStr

from gpurun import glance, notify
from gpurun.clock import Deadline
from gpurun.model import Ending, RunState
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
    made = Scene(tmp_path, inbox)
    yield made
    made.journal.close()


def test_a_run_is_told_from_its_box_to_its_end_each_event_once(scene: Scene) -> None:
    scene.rented()
    assert scene.look() == ["gpurun: smoke has a box"]
    scene.armed()
    assert scene.look()[1:] == ["gpurun: smoke: its timer is armed"]
    scene.fuse(2)
    assert len(scene.look()) == 2
    scene.story.gone()
    assert scene.look()[2:] == ["gpurun: smoke is done"]
    assert len(scene.look()) == 3
    last = scene.inbox.messages[-1]["message"]
    assert "run run00001 at local, 4x H100, $3.60/h, $" in last and "of $13.00 spent" in last
    assert "proven gone at" in last


def test_nothing_is_told_twice_after_a_restart(scene: Scene) -> None:
    scene.rented()
    scene.look()
    scene.notices = scene.started()
    assert scene.look() == ["gpurun: smoke has a box"]
    scene.story.gone()
    scene.notices = scene.started()
    assert scene.look()[1:] == ["gpurun: smoke is done"]
    scene.notices = scene.started()
    assert len(scene.look()) == 2


def test_of_two_keepers_that_would_tell_it_one_does(scene: Scene) -> None:
    scene.rented()
    claims = [scene.journal.tellings.claim([(scene.story.run_id, "started")]) for _ in range(2)]
    assert [len(claimed) for claimed in claims] == [1, 0]
    assert scene.look() == []


def test_what_ended_while_no_keeper_ran_is_told_later(scene: Scene) -> None:
    scene.rented()
    scene.look()
    scene.story.gone()
    scene.notices = scene.started()
    assert scene.look(after_s=3600)[1:] == ["gpurun: smoke is done"]


def test_what_was_before_messages_were_wanted_is_no_news(scene: Scene) -> None:
    scene.story.rented().gone()
    scene.clock.advance(180)
    assert scene.look() == []
    scene.journal.runs.event(scene.story.run_id, "settled", "late")
    assert scene.look() == []


def test_of_a_run_older_than_the_wish_its_end_is_told_but_not_its_beginning(scene: Scene) -> None:
    scene.story.rented(minutes=600)
    scene.clock.advance(180)
    assert scene.look() == []
    scene.story.gone()
    assert scene.look() == ["gpurun: smoke is done"]


def test_of_the_money_the_highest_mark_is_told_once(scene: Scene) -> None:
    scene.rented()
    scene.look()
    hours_to_81 = 13 * 0.81 / 3.6
    scene.clock.advance(hours_to_81 * 3600)
    scene.fuse()
    assert scene.look()[1:] == ["gpurun: smoke has spent 80% of its money"]
    scene.journal.ledger.book(scene.story.label, "train")
    assert len(scene.look()) == 2
    scene.clock.advance(13 * 0.15 / 3.6 * 3600)
    scene.fuse()
    assert scene.look()[2:] == ["gpurun: smoke has spent 95% of its money"]


def test_money_that_is_booked_counts_as_money_that_is_not(scene: Scene) -> None:
    scene.rented()
    for _ in range(4):
        scene.clock.advance(13 * 0.12 / 3.6 * 3600)
        scene.fuse()
        scene.journal.ledger.book(scene.story.label, "train")
        assert scene.look() == ["gpurun: smoke has a box"]
    scene.clock.advance(13 * 0.05 / 3.6 * 3600)
    scene.fuse()
    assert scene.look()[1:] == ["gpurun: smoke has spent 50% of its money"]


@pytest.mark.parametrize(
    ("ending", "state", "title"),
    [
        (Ending.FAILED, RunState.FAILED, "smoke has failed"),
        (Ending.KILL, RunState.KILLED, "smoke was killed"),
        (Ending.DEADLINE, RunState.DEADLINE, "smoke was ended by its timer"),
    ],
)
def test_each_end_has_its_own_words(
    scene: Scene, ending: Ending, state: RunState, title: str
) -> None:
    scene.rented()
    scene.look()
    scene.story.gone(ending, state)
    assert scene.look()[1:] == [f"gpurun: {title}"]


def test_a_training_that_hangs_is_told_before_its_end(scene: Scene) -> None:
    scene.rented()
    scene.look()
    verdict = {"cause": "hang", "says": "No step for 10 minutes.", "cure": "", "evidence": ""}
    scene.journal.runs.progress(scene.story.run_id, {"verdict": verdict})
    assert scene.look()[1:] == ["gpurun: smoke is stuck"]
    assert "No step for 10 minutes." in scene.inbox.messages[-1]["message"]


def test_what_may_still_bill_is_told(scene: Scene) -> None:
    scene.rented()
    scene.look()
    scene.journal.endings.end_run(scene.story.run_id, Ending.KILL, "killed", 0)
    scene.journal.runs.finish(scene.story.run_id, RunState.STILL_BILLING, 10, "not proven")
    assert scene.look()[1:] == ["gpurun: smoke is STILL BILLING"]


def test_guards_that_are_too_few_for_a_minute_are_told_once(scene: Scene) -> None:
    scene.rented()
    assert scene.look() == ["gpurun: smoke has a box"]
    scene.look(after_s=170)
    assert len(scene.look(after_s=20)) == 1  # the fuse is not read back since three minutes
    assert scene.look(after_s=61)[1:] == ["gpurun: smoke: only keeper guards its box"]
    assert len(scene.look(after_s=61)) == 2


def test_a_key_that_is_refused_is_told_though_two_guards_are_left(scene: Scene) -> None:
    scene.rented()
    scene.fuse(name="provider")
    scene.look()
    scene.key_taken = False
    assert len(scene.look(after_s=55)) == 1
    assert scene.look(after_s=61)[1:] == ["gpurun: smoke: only fuse and provider guard its box"]
    said = scene.inbox.messages[-1]["message"]
    assert "keeper does not see local" in said and "gpurun auth" in said
    assert len(scene.look(after_s=61)) == 2


def test_a_guard_that_is_back_within_a_minute_was_not_missing(scene: Scene) -> None:
    scene.rented()
    scene.look()
    scene.look(after_s=185)
    scene.fuse()
    scene.look(after_s=50)
    assert scene.look(after_s=50) == ["gpurun: smoke has a box"]


def test_only_what_was_chosen_is_told(tmp_path: Path, inbox: Inbox) -> None:
    scene = Scene(tmp_path, inbox, on=("finished", "50%"))
    scene.rented()
    scene.look()
    scene.clock.advance(13 * 0.85 / 3.6 * 3600)
    assert scene.look() == ["gpurun: smoke has spent 50% of its money"]
    scene.story.gone()
    assert scene.look()[1:] == ["gpurun: smoke is done"]
    scene.journal.close()


def test_many_events_at_once_travel_together(tmp_path: Path, inbox: Inbox) -> None:
    scene = Scene(tmp_path, inbox)
    scene.look()
    stories = [Story(scene.journal, scene.clock, f"run000{number:02}") for number in range(30)]
    for story in stories:
        story.rented(minutes=600)
    for _ in range(3):
        scene.look()
    text = scene.inbox.text
    assert all(text.count(f"run {story.run_id} ") == 1 for story in stories)
    assert len(scene.inbox.messages) < 10
    scene.journal.close()


def test_no_secret_is_in_messages_journal_or_log(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "sesame-open")
    scene.settings = scene.settings.model_copy(update={"keys": {"vast": SecretStr("vast-hidden")}})
    scene.notices = scene.started()
    scene.rented()
    scene.inbox.refuses = True
    scene.look()
    scene.inbox.refuses = False
    error = "refused with vast-hidden and sesame-open"
    scene.journal.endings.end_run(scene.story.run_id, Ending.FAILED, error, 0)
    scene.journal.runs.failing(scene.story.run_id, error, 5)
    scene.journal.attempts.gone(scene.story.label, "{}")
    scene.journal.runs.finish(scene.story.run_id, RunState.FAILED, 5)
    scene.look()
    assert "refused with (secret) and (secret)" in scene.inbox.text
    kept = (scene.root / "gpurun.db").read_bytes() + (scene.root / "gpurun.db-wal").read_bytes()
    assert b"hunter2" not in kept
    assert "hunter2" not in caplog.text + scene.inbox.text


def test_a_journal_that_is_garbage_stops_nothing(scene: Scene) -> None:
    scene.rented()
    for suffix in ("", "-wal"):
        path = Path(f"{scene.root / 'gpurun.db'}{suffix}")
        path.write_bytes(b"\xff" * path.stat().st_size)
    scene.clock.advance(6)
    scene.notices.step()
    deadline = Deadline(10)
    while scene.notices.working() and not deadline.passed():
        pass
    assert not scene.notices.working()


def test_a_sender_says_of_each_address_what_became_of_it(inbox: Inbox) -> None:
    urls = [(1, inbox.url), (2, "json://127.0.0.1:1/x"), (3, "nosuch://y"), (4, "hunter2")]
    said = {each.number: (each.service, each.ok) for each in notify.send(urls, "Title", "Body")}
    assert said == {
        1: ("json", True),
        2: ("json", False),
        3: ("nosuch", False),
        4: ("no address", False),
    }
    assert (inbox.titles, inbox.messages[0]["message"]) == (["Title"], "Body")


def test_a_service_that_hangs_is_left_and_the_others_are_not(inbox: Inbox) -> None:
    hanging = Inbox()
    hanging.hangs = True
    said = notify.send([(1, hanging.url), (2, inbox.url)], "Title", "Body", within_s=4)
    hanging.close()
    assert [each.trouble for each in said] == ["no answer within 4 s", ""]
    assert inbox.titles == ["Title"]


def test_a_notifier_that_hangs_for_ever_delays_no_kill(home: Home, inbox: Inbox) -> None:
    inbox.hangs = True
    settle(home, inbox)
    run = home.up(home.recipe(train=WAITS, run_minutes=0.1, grace_minutes=0.05))
    home.until_phase(run, "train")
    ends_at = home.document(run)["timer"]["ends_at"]
    home.until_finished(run)
    assert inbox.asked and not inbox.messages
    receipt = home.document(run)["receipt"]
    assert seconds(ends_at, receipt["delete_acked_at"]) <= 2, home.logs()
    home.until(lambda: "no answer within 10 s" in home.logs())
    assert "hunter2" not in home.logs()


def test_a_keeper_without_the_extra_says_so_once_and_ends_in_time(home: Home, inbox: Inbox) -> None:
    hides = home.user / "hides"
    hides.mkdir()
    (hides / "sitecustomize.py").write_text("import sys\nsys.modules['apprise'] = None\n")
    home.env["PYTHONPATH"] = str(hides)
    settle(home, inbox)
    run = home.up(home.recipe(train=WAITS, run_minutes=0.1, grace_minutes=0.05))
    home.until_phase(run, "train")
    ends_at = home.document(run)["timer"]["ends_at"]
    home.until_finished(run)
    receipt = home.document(run)["receipt"]
    assert seconds(ends_at, receipt["delete_acked_at"]) <= 2, home.logs()
    home.until(lambda: "pip install 'gpurun[notify]'" in home.run("keeper", "status").stdout)
    assert not inbox.asked


def test_a_keeper_that_is_killed_tells_nothing_twice(home: Home, inbox: Inbox) -> None:
    settle(home, inbox)
    run = home.up(home.recipe(train=WAITS, run_minutes=1))
    home.until(lambda: "gpurun: tiny: its timer is armed" in inbox.text)
    home.kill_keeper()
    assert home.run("kill", run, "--yes").returncode == 0
    home.until_finished(run)
    home.until(lambda: "tiny was killed" in inbox.text)
    for title in ("tiny has a box", "tiny: its timer is armed", "tiny was killed"):
        assert inbox.text.count(f"gpurun: {title}") == 1, inbox.text


def test_an_address_that_is_added_while_the_keeper_runs_is_used(home: Home, inbox: Inbox) -> None:
    run = home.up(home.recipe(train=WAITS, run_minutes=1))
    home.until_phase(run, "train")
    settle(home, inbox)
    home.until(lambda: noted_at(home, "notify begins"))
    home.run("kill", run, "--yes")
    home.until(lambda: "gpurun: tiny was killed" in inbox.text)


def test_a_test_message_says_of_each_service_what_became_of_it(home: Home, inbox: Inbox) -> None:
    assert "no address to notify" in home.run("notify", "test").stderr
    home.config.write_text(f'notify = ["{inbox.url}", "json://127.0.0.1:1/hunter2-token"]\n')
    home.config.chmod(0o600)
    done = home.run("notify", "test", "--json")
    assert done.returncode == 4
    found = json.loads(done.stdout)["deliveries"]
    assert [(each["service"], each["ok"]) for each in found] == [("json", True), ("json", False)]
    assert set(found[0]) == {"number", "service", "ok", "trouble"}
    assert inbox.titles == ["gpurun: a test"]
    assert "hunter2" not in done.stdout + done.stderr


def test_addresses_that_others_can_read_are_refused(home: Home, inbox: Inbox) -> None:
    settle(home, inbox)
    home.config.chmod(0o644)
    done = home.run("notify", "test")
    assert done.returncode == 2 and "chmod 600" in done.stderr


def test_keeper_status_shows_what_became_of_the_last_message(scene: Scene) -> None:
    scene.inbox.refuses = True
    scene.rented()
    scene.look()
    shown = glance.keeper_document(scene.root, scene.clock.now())
    assert "it did not take the message" in shown["notify"]["trouble"]
    assert shown["next_timers"][0]["guards"] == ["keeper", "fuse"]
    scene.inbox.refuses = False
    scene.story.gone()
    scene.look()
    shown = glance.keeper_document(scene.root, scene.clock.now())
    assert (shown["notify"]["trouble"], shown["live_runs"]) == (None, 0)


def settle(home: Home, inbox: Inbox) -> None:
    home.config.write_text(f'notify = ["{inbox.url}"]\n')
    home.config.chmod(0o600)


def noted_at(home: Home, what: str) -> bool:
    journal = home.journal()
    try:
        with journal.database.read() as session:
            ask = session.connection().exec_driver_sql
            return bool(ask("SELECT 1 FROM events WHERE what = :what", {"what": what}).all())
    finally:
        journal.close()


def seconds(since: str, until: str) -> float:
    return (datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds()
