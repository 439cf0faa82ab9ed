"""Runs whose ending the journal cannot take: ended from this process, all at once.

It may be locked, full, read-only, corrupt or of a newer gpurun.  Which boxes they are is told by
what of it can be read, and by the black box.  That a person has ended them is noted there, if
anything can be written at all: any keeper goes on from the note, and the journal comes to say
`killed` as soon as it can be written again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace

from gpurun.atonce import ask_each
from gpurun.blackbox import KILLING, BlackBox, Entry
from gpurun.clock import Clock
from gpurun.errors import GpurunError
from gpurun.keeper.charges import from_blackbox
from gpurun.keeper.clouds import Clouds
from gpurun.model import Attempt, AttemptState
from gpurun.places import Places
from gpurun.proof import Evidence
from gpurun.provider import Provisioner
from gpurun.reaper import ask, holdings, look
from gpurun.settings import Settings
from gpurun.store import Journal
from gpurun.timers import entry_of, evidence_of

GIVES_UP_S = 60.0
EACH_S = 5.0  # so much more for each box of a provider: requests are spaced
AGAIN_S = 2.0
BUSY_S = 0.25


@dataclass(slots=True)
class Unproven:
    """What may bill of such a run, and what has become of it."""

    run_id: str
    provider: str
    evidence: Evidence
    entry: Entry | None = None  # its line in the black box, or what that would be
    noted: bool = False  # there, that a person has ended it
    gone: bool = False
    why: str = "it could not be asked for in time"


def end(
    run_ids: Sequence[str],
    places: Places,
    settings: Settings,
    clock: Clock,
    write: Callable[[str], bool],
) -> list[Unproven]:
    """DELETE and PROOF of all that may bill of these runs.

    `write` tries the journal once more.  A run that it takes after all is left to driver and
    keeper.
    """
    boxes = [box for run_id in run_ids for box in _boxes(run_id, places, clock)]
    _note(boxes, KILLING, places, clock)
    at: dict[str, list[Unproven]] = {}
    for box in boxes:
        at.setdefault(box.provider, []).append(box)

    def end_at(provider: str) -> None:
        left = at[provider]
        cloud = Clouds(places, settings, clock)(provider)
        until_s = clock.boot_s() + _lasts_s(left)
        while left and clock.boot_s() < until_s:
            _round(left, cloud, clock)
            _note([box for box in left if box.gone], AttemptState.GONE, places, clock)
            written = _written(left, write)
            left = [box for box in left if not box.gone and box.run_id not in written]
            clock.sleep(_next_look_s(left, cloud))

    longest_s = max(map(_lasts_s, at.values()), default=0.0)
    for heard in ask_each(list(at), end_at, clock, longest_s + GIVES_UP_S):
        for box in at[heard.provider]:
            box.why = box.why if heard.trouble is None else str(heard.trouble)
    return boxes


def _boxes(run_id: str, places: Places, clock: Clock) -> list[Unproven]:
    """By the journal; what it cannot tell, by the black box."""
    known: dict[str, Unproven | None] = {}
    # What a damaged journal raises cannot be listed.
    with suppress(Exception), closing(Journal(places.database, clock, BUSY_S)) as journal:
        attempts = journal.attempts.of_run(run_id)
        known = {attempt.label: _billing(attempt, clock) for attempt in attempts}
        for attempt in attempts:
            box, timer = known[attempt.label], journal.timers.of(attempt.label)
            if box is not None and timer is not None:
                box.entry = entry_of(attempt, timer, attempt.state)
    with suppress(OSError):
        for label, entry in BlackBox(places.blackbox, "", "").read().items():
            charge = from_blackbox(entry) if f"-{run_id}-" in label else None
            if (box := known.get(label)) is not None:
                box.entry = box.entry or entry
            elif charge is not None and label not in known:
                evidence = replace(charge.evidence(clock), seen=entry.state == AttemptState.SEEN)
                known[label] = Unproven(run_id, charge.provider, evidence, entry)
    return [box for box in known.values() if box is not None]


def _billing(attempt: Attempt, clock: Clock) -> Unproven | None:
    if not attempt.state.may_bill or attempt.state is AttemptState.GHOST:
        return None
    return Unproven(attempt.run_id, attempt.provider, evidence_of(attempt, clock))


def _note(boxes: Sequence[Unproven], state: str, places: Places, clock: Clock) -> None:
    """As far as anything can be written; no box waits for it."""
    now = clock.now()
    with suppress(OSError):
        for box in boxes:
            if box.entry is not None:
                entry = replace(box.entry, state=state, fires_at=now, ends_at=now)
                BlackBox(places.blackbox, "", "").append(entry)
                box.noted = True


def _lasts_s(boxes: Sequence[Unproven]) -> float:
    return GIVES_UP_S + EACH_S * len(boxes)


def _round(boxes: Sequence[Unproven], cloud: Provisioner, clock: Clock) -> None:
    """Each is asked to end, then one list serves all of them."""
    for box in boxes:
        with _told(box):
            box.evidence = ask(box.evidence, cloud, clock)
    with _told(*boxes):
        held = holdings(cloud, clock)
        for box in boxes:
            with _told(box):
                box.evidence, verdict = look(box.evidence, held, cloud, clock)
                box.gone, box.why = verdict.gone, verdict.why


@contextmanager
def _told(*boxes: Unproven) -> Iterator[None]:
    """What goes wrong is told; not even a bug of an adapter's keeps another box waiting."""
    try:
        yield
    except Exception as error:
        for box in boxes:
            box.why = str(error) if isinstance(error, GpurunError) else repr(error)


def _written(boxes: Sequence[Unproven], write: Callable[[str], bool]) -> set[str]:
    """The runs that the journal takes now; a locked one is waited for once a round."""
    taken: set[str] = set()
    for run_id in {box.run_id for box in boxes}:
        if not write(run_id):
            break
        taken.add(run_id)
    return taken


def _next_look_s(boxes: Sequence[Unproven], cloud: Provisioner) -> float:
    """After acknowledged DELETEs the second list is due once the gap has passed."""
    if not boxes:
        return 0.0
    acked = all(box.evidence.acked_s is not None for box in boxes)
    return max(AGAIN_S, cloud.traits.proof_gap_s) if acked else AGAIN_S
