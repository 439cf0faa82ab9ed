"""How long a training will still take, evaluations and checkpoints counted in."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpurun import glance, show
from gpurun.engine.watch.pace import Pace
from gpurun.engine.watch.progress import Progress
from tests.fakecloud import FakeClock
from tests.stories import Story, journal_at

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
Line = dict[str, Any]


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def training(
    steps: int = 1000, rate: float = 2.0, eval_every: int = 100, eval_s: float = 30.0
) -> Iterator[tuple[float, Line]]:
    """When each line is written: a report every ten steps, an evaluation now and then."""
    now_s = 0.0
    for step in range(10, steps + 1, 10):
        now_s += 10 / rate
        yield now_s, {"event": "step", "step": step, "total_steps": steps, "it_per_s": rate}
        if step % eval_every == 0:
            yield now_s + 1, {"event": "checkpoint", "step": step}
            now_s += eval_s
            yield now_s, {"event": "eval", "step": step}


def left_s(pace: Pace, step: int, total: int = 1000) -> float:
    found = pace.left_s(step, total, None)
    assert found is not None
    return found


def heard(lines: Iterator[tuple[float, Line]], until_step: int, *, own_clock: bool = True) -> Pace:
    pace = Pace()
    for now_s, line in lines:
        if line["step"] > until_step:
            break
        pace.hear(line | ({"elapsed_s": now_s} if own_clock else {}), at(now_s))
    return pace


@pytest.mark.parametrize("own_clock", [True, False])
@pytest.mark.parametrize("step", [200, 250, 500, 890])
def test_evaluations_to_come_are_counted_in(step: int, own_clock: bool) -> None:
    pace = heard(training(), step, own_clock=own_clock)
    evaluations = (1000 - step + 99) // 100 if step % 100 else (1000 - step) // 100
    # The last one takes place at the last step, and is awaited too.
    assert left_s(pace, step) == pytest.approx((1000 - step) / 2 + evaluations * 30, abs=1)


def test_after_the_first_evaluation_the_next_ones_are_expected() -> None:
    pace = heard(training(), 150)
    assert left_s(pace, 150) == pytest.approx(850 / 2 + 9 * 30, rel=0.02)


def test_before_the_first_evaluation_only_steps_are_known() -> None:
    assert left_s(heard(training(), 90), 90) == pytest.approx(910 / 2)


def test_an_evaluation_under_way_is_not_counted_whole() -> None:
    pace = heard(training(), 290)
    pace.hear({"event": "step", "step": 300, "elapsed_s": 210.0}, at(210))
    pace.hear({"event": "evaluating", "step": 300, "elapsed_s": 230.0}, at(230))
    assert left_s(pace, 300) == pytest.approx(350 + 8 * 30 - 20, abs=1)


def test_checkpoints_of_their_own_rhythm_are_a_kind_of_their_own() -> None:
    pace, now_s = Pace(), 0.0
    for step in range(10, 510, 10):
        now_s += 5 + (8 if step % 50 == 20 else 0)
        if step % 50 == 20:  # it was saved after two of these ten steps
            pace.hear({"event": "checkpoint", "step": step - 8, "elapsed_s": now_s - 4}, at(now_s))
        pace.hear({"event": "step", "step": step, "elapsed_s": now_s}, at(now_s))
    assert left_s(pace, 500) == pytest.approx(500 / 2 + 10 * 8, rel=0.03)


def test_pauses_that_nobody_announces_are_measured_by_the_gap() -> None:
    pace = Pace()
    for now_s, line in training(eval_s=120):
        if line["event"] == "step" and line["step"] <= 500:
            pace.hear({"step": line["step"]}, at(now_s))
    # The one at step 500 has begun, and nobody can know it yet.
    assert left_s(pace, 500) == pytest.approx(500 / 2 + 6 * 120, rel=0.02)


def test_an_hour_in_which_nobody_looked_is_no_pause() -> None:
    pace = Pace()
    for step in range(0, 200, 10):
        pace.hear({"step": step}, at(step / 2))
    for step in range(200, 7400, 10):  # all heard at once
        pace.hear({"step": step}, at(3700))
    pace.hear({"step": 7410}, at(3705))
    assert left_s(pace, 7410, 10_000) == pytest.approx(2590 / 2, rel=0.02)


def test_the_speed_is_that_of_the_last_minutes() -> None:
    pace, now_s = Pace(), 0.0
    for step in range(0, 20_000, 10):
        now_s += 1 if step < 10_000 else 5
        pace.hear({"step": step, "elapsed_s": now_s}, at(now_s))
    assert left_s(pace, 20_000, 21_000) == pytest.approx(500, rel=0.02)


def test_a_training_that_began_anew_is_timed_anew() -> None:
    pace = heard(training(), 300)
    for step, now_s in ((10, 5.0), (20, 10.0), (30, 15.0)):
        pace.hear({"event": "step", "step": step, "elapsed_s": now_s}, at(900 + now_s))
    assert pace.kept()["pauses"].keys() == {"eval"}
    assert left_s(pace, 30) > 970 / 2


def test_another_watcher_goes_on_from_what_was_kept() -> None:
    lines = list(training())
    whole = heard(iter(lines), 600)
    pace = Pace()
    for now_s, line in lines:
        if line["step"] > 600:
            break
        pace = Pace(json.loads(json.dumps(pace.kept()))) if line["step"] == 330 else pace
        pace.hear(line | {"elapsed_s": now_s}, at(now_s))
    assert left_s(pace, 600) == pytest.approx(left_s(whole, 600), rel=0.02)


def test_progress_tells_the_time_left_with_all_that_is_to_come() -> None:
    progress = Progress(NOW)
    for now_s, line in training():
        if line["step"] <= 500:
            progress.hear(line | {"elapsed_s": now_s}, at(now_s))
    assert progress.document()["eta_s"] == pytest.approx(250 + 5 * 30, abs=1)
    again = Progress(at(9999), json.loads(json.dumps(progress.kept())))
    assert again.document()["eta_s"] == progress.document()["eta_s"]


def test_what_a_timer_will_cut_off_is_said_in_steps_time_and_dollars(tmp_path: Path) -> None:
    """From the lines of a training to the sentence of `status`: 400 s are to come (250 of steps,
    five evaluations of 30), the timer fires in 240; 500 of 1000 steps are done.
    """
    clock = FakeClock()
    story = Story(journal_at(tmp_path, clock), clock).rented(minutes=4).watched()
    progress = Progress(NOW)
    for now_s, line in training():
        if line["step"] <= 500:
            progress.hear(line | {"elapsed_s": now_s}, at(now_s))
    story.journal.runs.progress(story.run_id, progress.document())
    run = glance.run_document(tmp_path, story.run_id, clock.now())
    said = show.run_text(run, show.Look())
    assert "will not finish before its timer: at step 800 of 1,000; 3 min and $0.16 more" in said
    assert (run["forecast"]["late_s"], run["forecast"]["usd_to_finish"]) == (160.0, "0.40")
    story.journal.close()


FIGURES = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3)
LINES = st.dictionaries(
    st.sampled_from(["step", "total_steps", "event", "elapsed_s", "it_per_s"]), FIGURES
)


@given(st.lists(st.tuples(LINES, st.floats(0, 1e6)), max_size=20))
def test_whatever_a_box_says_there_is_a_time_left_or_none(
    lines: list[tuple[Mapping[str, Any], float]],
) -> None:
    progress = Progress(NOW)
    for line, now_s in lines:
        progress.hear(line, at(now_s))
        eta_s = progress.document()["eta_s"]
        assert eta_s is None or eta_s >= 0
    assert json.loads(json.dumps(progress.kept(), allow_nan=False))


@given(
    st.recursive(FIGURES, lambda each: st.dictionaries(
        st.sampled_from(
            ["steps", "seconds", "pauses", "mark", "count", "at_s", "step", "eval", "first_step"]
        ),
        each,
    ) | st.lists(each, max_size=3), max_leaves=15)
)  # fmt: skip
def test_nonsense_that_was_kept_breaks_nothing(kept: Any) -> None:
    pace = Pace(kept)
    pace.hear({"step": 10, "total_steps": 40, "it_per_s": 2.0}, NOW)
    assert pace.left_s(10, 40, 2.0) is not None
