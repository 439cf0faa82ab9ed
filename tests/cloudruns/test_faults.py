"""What each fault of a cloud comes to for a whole run, in boxes and in dollars of its meter.

Each run begins with `gpurun up`; when it is over, the cloud lives nine hours on.
"""

from decimal import Decimal

import pytest

from tests.cloudruns import buying, ending, table, training
from tests.cloudruns.stories import Story, Told

STORIES = (*buying.STORIES, *training.STORIES, *ending.STORIES)


@pytest.mark.xdist_group("cloudruns")  # those side by side are of one process
@pytest.mark.parametrize(
    ("provider", "story"),
    [
        pytest.param(provider, story, id=f"{provider}: {story.fault}")
        for story in STORIES
        for provider in story.providers
    ],
)
def test_nothing_leaks_when(
    provider: str, story: Story, told: Told, request: pytest.FixtureRequest
) -> None:
    outcome = told[provider, story.fault].result()
    table.TABLE.keep(request.node.user_properties, table.row(story.fault, provider, outcome))
    assert (outcome.state, outcome.exit_code, outcome.boxes) == story.ends, outcome.said
    assert outcome.leaked_usd == Decimal("0.00")
