"""What a run has come to, as its boxes go: said once, and never too early."""

from pathlib import Path

import pytest

from gpurun.model import Ending, RunState
from gpurun.outcome import conclude
from tests.fakecloud import FakeClock
from tests.stories import Story, journal_at


@pytest.fixture
def story(tmp_path: Path) -> Story:
    clock = FakeClock()
    return Story(journal_at(tmp_path, clock), clock).rented()


def state(story: Story) -> RunState:
    return story.journal.runs.get(story.run_id).state


def gone(story: Story) -> None:
    story.journal.attempts.gone(story.label, "{}")
    conclude(story.journal, story.run_id)


def test_a_misfit_box_that_is_not_proven_gone_makes_its_run_still_billing(story: Story) -> None:
    """Until it is gone: then the run goes on, for it was not to end."""
    story.journal.endings.end_attempt(story.label, Ending.FAILED, "3 GPUs instead of 4")
    conclude(story.journal, story.run_id)
    assert state(story) is RunState.ACTIVE
    conclude(story.journal, story.run_id, "it is still listed")
    assert state(story) is RunState.STILL_BILLING
    gone(story)
    assert state(story) is RunState.ACTIVE


def test_a_box_that_is_not_to_end_does_not_make_its_run_still_billing(story: Story) -> None:
    conclude(story.journal, story.run_id, "some other box of it")
    assert state(story) is RunState.ACTIVE


def test_what_still_billed_of_a_run_that_is_to_end_ends_it(story: Story) -> None:
    story.journal.endings.end_run(story.run_id, Ending.KILL, "gpurun kill", 0)
    conclude(story.journal, story.run_id, "it is still listed")
    assert state(story) is RunState.STILL_BILLING
    story.journal.runs.goes_on(story.run_id)
    assert state(story) is RunState.STILL_BILLING
    gone(story)
    assert (state(story), story.journal.runs.get(story.run_id).exit_code) == (RunState.KILLED, 7)
