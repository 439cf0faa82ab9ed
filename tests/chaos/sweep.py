"""Every point of the journal of a run, each the last of a process (protocol 8); nothing random.

A run is played once undisturbed, and the points that it passed are written down.  Then it is played
again for each of them: the process that passes it is killed there; and, where that is no command,
once more with everything of gpurun on the machine, until somebody types one.
"""

from collections.abc import Iterator
from dataclasses import replace

from tests.chaos.judge import Passing
from tests.chaos.playing import play
from tests.chaos.schedule import Deed, Schedule
from tests.chaos.worlds import TRAIN, worlds

NEXT_COMMAND_S = 4.0
EXTEND = "extend"
LOST = "no answer"
TAKEN_OVER = "taken over"
GONE_S = 190.0  # the fuse ends a box within 150 s of its deadline


def references(provider: str) -> list[Schedule]:
    """The runs that are disturbed: ended by the timer, by themselves, by `kill`; extended; one that
    was taken over; and one whose purchase was not answered, so that its box had to be looked for.
    """
    killed = Deed("gpurun", "driver", "Runs.begin_phase", 8, words=("kill", "RUN", "--yes"))
    extended = replace(killed, words=("extend", "RUN", "0.05m", "--yes"))
    fault, values = ("create_lost", {"times": 1}) if provider == "local" else ("answer_lost", {})
    lost = Deed("fault", "driver", "Runs.event", seconds=60, words=(fault,), values=values)
    return [
        Schedule(provider, "waits", name="timer"),
        Schedule(provider, "ends", name="by itself", run_minutes=1, only="done"),
        Schedule(provider, "waits", (killed,), name="kill", run_minutes=0.2),
        Schedule(provider, "waits", (extended,), name=EXTEND, run_minutes=0.2),
        Schedule(provider, "waits", (Deed("kill", *TRAIN),), name=TAKEN_OVER, run_minutes=0.2),
        Schedule(provider, "ends", (lost,), name=LOST, run_minutes=1, only="done"),
    ]


def swept(provider: str) -> Iterator[Schedule]:
    """Each undisturbed run, then what is made of it; AssertionError if one alone is not clean."""
    known: set[tuple[str, str, int]] = set()
    for reference in references(provider):
        alone = play(reference)
        assert alone.verdict.clean, f"{alone.verdict.found}\n{alone.logs}"
        in_time = any(
            one.point == "Timers.put_in_force" for one in alone.passed if one.who == "cli"
        )
        assert in_time or reference.name != EXTEND, "it was over before it was extended"
        looked = any(one.point == "Attempts.unclear" for one in alone.passed)
        assert looked or reference.name != LOST, "its purchase was answered"
        followed = any(one.who == "takeover" for one in alone.passed)
        assert followed or reference.name != TAKEN_OVER, "nobody took it over"
        for passing in alone.passed:
            key = (passing.who, passing.point, passing.nth)
            if key not in known:
                known.add(key)
                yield from _killed_at(reference, passing)
    yield gone_for_good(provider)
    yield from worlds(provider)


def gone_for_good(provider: str) -> Schedule:
    """Everything of ours dies in a training, and nobody comes back before the fuse has ended it."""
    gone = Deed("kill all", "keeper", "Timers.acknowledge", 2, seconds=GONE_S)
    return Schedule(provider, "waits", (gone,), name="gone for good")


def _killed_at(reference: Schedule, passing: Passing) -> Iterator[Schedule]:
    at = Deed("kill", passing.who, passing.point, passing.nth)
    dies_before_the_id = passing.point in ("Attempts.intend", "BlackBox.append intent")
    only = "" if dies_before_the_id else reference.only
    name = f"{reference.name}: {passing.who} at {passing.point} {passing.nth}"
    all_at = replace(at, do="kill all", seconds=NEXT_COMMAND_S)
    for deed in (at,) if passing.who == "cli" else (at, all_at):
        yield replace(
            reference, name=f"{name}: {deed.do}", deeds=(*reference.deeds, deed), only=only
        )
