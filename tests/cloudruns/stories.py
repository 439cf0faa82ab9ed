"""Runs that meet a fault, told side by side: each waits half a minute for a proof of death."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cloudruns.scene import Outcome, Scene, scene

SIDE_BY_SIDE = 8
VAST, PRIME = ("vast",), ("prime",)
BOTH, PRIME_FIRST = VAST + PRIME, PRIME + VAST


@dataclass(frozen=True, slots=True)
class Story:
    """A fault, how a run meets it, and what that comes to: state, exit code, boxes made.

    Whatever it is, nothing may leak.  Where there are two clouds, it is told at the first of them,
    and at the other for the table alone, unless at `each`.
    """

    fault: str
    providers: tuple[str, ...]
    tell: Callable[[Scene], object]
    ends: tuple[str, int, int] = ("done", 0, 1)
    each: bool = False

    def usually(self, provider: str) -> bool:
        return self.each or provider == self.providers[0]


Told = dict[tuple[str, str], "Future[Outcome]"]


@contextmanager
def begun(wanted: Iterable[tuple[str, Story]], folder: Path) -> Iterator[Told]:
    """The outcomes to be, by provider and fault; in the order wanted, a few at a time."""
    with ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="story") as pool:
        told = {
            (provider, story.fault): pool.submit(_tell, provider, story, folder / f"home{number}")
            for number, (provider, story) in enumerate(wanted)
        }
        yield told
        pool.shutdown(cancel_futures=True)


def _tell(provider: str, story: Story, root: Path) -> Outcome:
    with scene(provider, root) as stage:
        story.tell(stage)
        return stage.outcome()
