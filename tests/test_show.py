"""What people read: figures, tables, warnings."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpurun import glance, show
from gpurun.show.risk import for_plan, if_off
from tests.fakecloud import FakeClock
from tests.stories import Story, journal_at

WIDE = show.Look()


@pytest.mark.parametrize(
    ("amount", "text"),
    [("1.42", "$1.42"), ("0", "$0.00"), ("-0.5", "-$0.50"), ("1234.5", "$1234.50"), (None, "-")],
)
def test_money_has_two_digits_and_its_sign(amount: str | None, text: str) -> None:
    assert show.money(amount) == text
    assert show.money(None if amount is None else Decimal(amount)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (42.4, "0:42"),
        (59.6, "1:00"),
        (754, "12:34"),
        (3723, "1:02:03"),
        (176523, "2d 1:02:03"),
        (-3, "0:00"),
        (None, "-"),
    ],
)
def test_durations_read_like_a_clock(seconds: float | None, text: str) -> None:
    assert show.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (130_712, "130.7 kB")]
)
def test_sizes_are_decimal(count: int, text: str) -> None:
    assert show.size(count) == text


def test_a_narrow_page_loses_columns_before_it_loses_ids(tmp_path: Path) -> None:
    document = _status(tmp_path)
    lines = show.status_text(document, show.Look(columns=60)).splitlines()
    assert lines[1].startswith("run00001") and "PROVIDER" not in lines[0]
    assert all(len(line) <= 60 for line in lines[:2])
    assert "PROVIDER" in show.status_text(document, WIDE)


def test_colour_is_only_for_terminals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    document = _status(tmp_path)
    assert "\x1b[" not in show.status_text(document, WIDE)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert show.Look.of(Terminal()).colour  # type: ignore[arg-type]
    monkeypatch.setenv("NO_COLOR", "1")
    assert not show.Look.of(Terminal()).colour  # type: ignore[arg-type]


def test_a_run_that_may_bill_is_said_loudly(tmp_path: Path) -> None:
    document = _status(tmp_path)
    document["runs"][0] |= {"state": "still_billing"}
    text = show.status_text(document, WIDE)
    assert "STILL BILLING $3.60/h" in text and "gpurun kill run00001" in text


def test_a_timer_that_no_guard_holds_is_said(tmp_path: Path) -> None:
    text = show.status_text(_status(tmp_path), WIDE)
    assert "no guard of its timer is known to be alive" in text


def test_orphans_are_shown_with_their_rate(tmp_path: Path) -> None:
    document = _status(tmp_path)
    known = {"provider": "vast", "instance_id": "77", "label": "mine", "usd_per_hour": "1.89"}
    document["orphans"] = [dict.fromkeys(glance.ORPHAN_KEYS) | known]
    document["orphans_checked_at"] = "2026-11-21T12:00:00Z"
    text = show.status_text(document, WIDE)
    assert "vast      77  mine   -      1.89" in text
    assert "1 thing under no timer of gpurun here: $1.89/h" in text


def test_one_run_is_shown_in_full(tmp_path: Path) -> None:
    text = show.run_text(_status(tmp_path)["runs"][0], WIDE)
    for expected in ("run00001", "4x H100", "$3.60/h", "of $13.00", "setup timer 1", "fuse: none"):
        assert expected in text


def test_progress_says_step_loss_speed_and_eta(tmp_path: Path) -> None:
    run = _status(tmp_path)["runs"][0] | {"phase": "train"}
    run["train"] = dict.fromkeys(glance.runs.TRAIN_KEYS) | {
        "step": 12, "total_steps": 40, "loss": 2.1, "it_per_s": 3.4, "eta_s": 12.2,
    }  # fmt: skip
    line = show.progress_line(run, show.said_of_itself(run, "noise"), WIDE)
    assert line.endswith("step 12/40  loss 2.1  3.4 it/s  eta 0:12")
    run["train"]["eta_s"] = 0
    assert show.said_of_itself(run, "evaluating").endswith("eta 0:00  evaluating")
    run["train"] |= {"step": 40, "eta_s": 7}
    assert show.said_of_itself(run, "evaluating").endswith("eta 0:07  evaluating")


def training(tmp_path: Path, **figures: Any) -> dict[str, Any]:
    """A run that trains, whose timer stops it ten minutes from now."""
    run = _status(tmp_path)["runs"][0] | {"phase": "train"}
    run["train"] = dict.fromkeys(glance.runs.TRAIN_KEYS) | figures
    return dict(run)


def test_gpus_are_shown_together_as_far_as_they_tell(tmp_path: Path) -> None:
    run = training(tmp_path, step=12, gpu_util=98.4, power_w=2560.2, gpu_mem_gib=245.31)
    assert show.said_of_itself(run, "") == "step 12  gpu 98% 2560 W 245.3 GiB"
    run["train"] |= {"gpu_util": None, "gpu_mem_gib": None}
    assert show.said_of_itself(run, "") == "step 12  gpu 2560 W"


def test_a_training_that_will_not_end_before_its_timer_is_said_in_time(tmp_path: Path) -> None:
    run = training(tmp_path, step=38_000, total_steps=51_905)
    run["forecast"] = {
        "finish_at": "2026-11-22T00:00:00Z",
        "usd_to_finish": "90.00",
        "before_timer": False,
        "late_s": 29_863.5,
        "usd_late": "62.71",
        "step_at_timer": 41_960,
    }
    text = show.run_text(run, WIDE)
    told = "will not finish before its timer: at step 41,960 of 51,905; 8.3 h and $62.71 more."
    assert told in text
    assert f"`gpurun extend {run['id']} 548m`" in text
    run["forecast"] |= {"late_s": 1200.0, "step_at_timer": None}
    assert "its timer: 20 min and $62.71 more." in show.run_text(run, WIDE)
    run["forecast"]["before_timer"] = True
    assert "will not finish" not in show.run_text(run, WIDE)


def test_trouble_is_said_while_the_training_still_runs(tmp_path: Path) -> None:
    document = _status(tmp_path)
    train = dict.fromkeys(glance.runs.TRAIN_KEYS) | {"trouble": "the loss is not finite"}
    document["runs"][0] |= {"phase": "train", "train": train}
    assert "run00001: the loss is not finite." in show.status_text(document, WIDE)
    document["runs"][0]["state"] = "failed"
    assert "not finite" not in show.status_text(document, WIDE)


def test_the_newest_checkpoint_is_shown_with_its_instant(tmp_path: Path) -> None:
    run = training(tmp_path, step=1, last_checkpoint_at="2026-11-21T12:06:16+00:00")
    shown = show.local_time("2026-11-21T12:06:16+00:00")
    assert f"checkpoint  {shown}" in show.run_text(run, WIDE)
    run["train"]["last_checkpoint_at"] = "yesterday"
    assert "checkpoint" not in show.run_text(run, WIDE)


def test_a_failed_run_shows_why(tmp_path: Path) -> None:
    document = _status(tmp_path)
    verdict = {"cause": "nan", "says": "The loss is NaN.", "cure": "Resume.", "evidence": "/e"}
    document["runs"][0] |= {"state": "failed", "verdict": verdict, "timer": None}
    assert show.status_text(document, WIDE).splitlines()[1].endswith("nan")
    assert "verdict    The loss is NaN. Resume." in show.run_text(document["runs"][0], WIDE)
    document["runs"][0]["error"] = "the training exited 1: The loss is NaN. Resume."
    assert show.run_text(document["runs"][0], WIDE).count("The loss is NaN.") == 1


def test_progress_is_one_line_no_wider_than_the_page(tmp_path: Path) -> None:
    run = _status(tmp_path)["runs"][0]
    line = show.progress_line(run, "Collecting torch\n" + "x" * 200, show.Look(columns=50))
    assert len(line) == 50 and "Collecting torch" in line and "\n" not in line


def test_the_bill_ends_with_what_became_of_the_box(tmp_path: Path) -> None:
    clock = FakeClock()
    story = Story(journal_at(tmp_path, clock), clock).rented()
    clock.advance(100)
    open_bill = glance.final_document(tmp_path, story.run_id, clock.now())
    assert show.report_text(open_bill, WIDE).endswith("not destroyed yet, $0.10 so far")
    story.gone()
    bill = show.report_text(glance.report_document(tmp_path, story.run_id, clock.now()), WIDE)
    assert bill.splitlines()[-1] == "destroyed, $0.10"
    assert "total" in bill and "timer 1 (setup, superseded)" in bill


def test_a_file_that_a_box_has_named_steers_no_terminal(tmp_path: Path) -> None:
    clock = FakeClock()
    story = Story(journal_at(tmp_path, clock), clock).rented()
    document = glance.final_document(tmp_path, story.run_id, clock.now())
    document["artifacts"] = [{"path": "/runs/\x1b[2J\nx", "bytes": 5, "sha256": "ab" * 32}]
    assert "/runs/?[2J?x   5 B  abababababab" in show.report_text(document, WIDE)


def test_instants_name_their_day(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = datetime(2026, 11, 21, 12, 6, 16, tzinfo=UTC)
    assert show.local_time(moment.isoformat()) == f"{moment.astimezone():%b %d %H:%M:%S}"
    assert show.local_time(None) == "-"


def _status(home: Path) -> dict[str, Any]:
    clock = FakeClock()
    journal = journal_at(home, clock)
    Story(journal, clock).rented()
    journal.close()
    return glance.status(home, clock.now())


def run_at(provider: str, **changed: object) -> dict[str, object]:
    return {
        "provider": provider,
        "state": "active",
        "timer": {"ends_at": "2026-11-21T03:12:00Z"},
        "collect_to": None,
        "collected_at": "2026-11-21T01:00:00Z",
        "collected_step": 10361,
        "started_at": "2026-11-21T00:00:00Z",
        "elapsed_s": 6060.0,
        "if_lost": {"ended_by": ["fuse"]},
    } | changed


def test_what_dies_with_a_box_while_this_machine_is_off_is_said() -> None:
    said = if_off(run_at("vast"))
    assert said is not None
    assert said.startswith("if this machine is off at ")
    assert said.endswith("what is not collected dies with the box (last: step 10361, 41:00 ago)")
    assert "stays on the host" in (if_off(run_at("ssh:me@h:22")) or "")
    assert "nothing has been collected yet" in (if_off(run_at("vast", collected_at=None)) or "")
    assert "pushes its results to a@b:c" in (if_off(run_at("vast", collect_to="a@b:c")) or "")
    nobody_else = run_at("prime", if_lost={"ended_by": []})
    assert "collected stays on the box, which goes on" in (if_off(nobody_else) or "")
    assert if_off(run_at("local")) is None
    assert if_off(run_at("vast", state="done")) is None


def test_the_plan_says_what_results_depend_on() -> None:
    assert for_plan("local", None) == []
    assert "dies with the box" in for_plan("prime", None)[0]
    assert "stays on the host" in for_plan("ssh:me@h:22", None)[0]
    assert "pushed by the box to a@b:c" in for_plan("ssh:me@h:22", "a@b:c")[0]
