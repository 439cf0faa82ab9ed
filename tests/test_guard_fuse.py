"""What the journal is told of a fuse, when what was read of it was overtaken on its way."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from gpurun.fuse import FuseState
from gpurun.guards import Fuse
from gpurun.shell import Result
from tests.fakecloud import FakeClock
from tests.stories import Story, journal_at


class Overtaken:
    """A fuse of seq 1; while its first answer is on its way, `meanwhile` happens."""

    def __init__(self, ends_at_s: int, meanwhile: Callable[[], None]) -> None:
        self.seq, self._ends_at_s, self._meanwhile = 1, ends_at_s, meanwhile

    def fuse_shell(self, _instance_id: str) -> "Overtaken":
        return self

    def fuse_home(self, _instance_id: str) -> str:
        return "/fuse"

    def run(self, _command: str, **_how: object) -> Result:
        answer = f"gpurun-fuse {self.seq} {self._ends_at_s} 1 armed 1\n"
        self._meanwhile()
        return Result(0, answer)


def test_an_answer_that_was_overtaken_by_extend_is_not_the_last_word(tmp_path: Path) -> None:
    clock = FakeClock()
    story = Story(journal_at(tmp_path, clock), clock).rented()
    ends_at = clock.now() + timedelta(hours=1)

    def extended() -> None:
        place.seq = 2
        story.journal.timers.guard(story.label, "fuse", "armed", seq=2, ends_at=ends_at)

    place = Overtaken(int(ends_at.timestamp()), extended)
    attempt = story.journal.attempts.get(story.label)
    state = Fuse(place, attempt, story.journal, clock).read()  # type: ignore[arg-type]
    assert isinstance(state, FuseState)
    [word] = [each for each in story.journal.timers.guards_of(story.label) if each.name == "fuse"]
    assert (state.seq, word.seq_read) == (2, 2)
    story.journal.close()
