"""Judges a schedule by the meter and the clock of the machine, not by what gpurun says of itself.

A deadline is the one that the journal had in force, and never later than the recipe allows and what
it was extended by; what was slept past it may be collected as long again, for two minutes at most.
What could not act for a time is forgiven that time and 5 s, and all are forgiven what a hypervisor
withheld from the machine in the meantime.
"""

import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpurun.budget import FUSE_MARGIN_S
from tests.chaos.beside import Beside
from tests.chaos.machine import Machine
from tests.chaos.meters import FOREIGN, Life
from tests.chaos.schedule import SECOND_UP, Deed, Schedule
from tests.chaos.stage import Away, Played
from tests.chaos.withheld import Withheld

AT_T_S = 2.0  # a training's SIGTERM, after `fires_at`
AT_E_S = 2.0  # the keeper's DELETE, after `ends_at`
LOAD_S = 5.0  # half a cent at $3.60/h, and the machine's own: many schedules share its cores
FUSE_S = 30.0  # the fuse's, after F
AGAIN_S = 5.0  # after it was revived, or is answered again
LATE_COLLECT_S = 120.0  # the setting `late_collect_minutes`, as it is by default
BACK_S = 60.0  # what had hidden itself, after it is listed again
SLACK_S = 1.0  # between two looks at the meter, and of what is written down
COUNTS = ("double_bought", "forgotten", "false_deaths", "killed_foreign", "killed_early")


@dataclass(slots=True)
class Verdict:
    """Counts of what must be nothing; `found` says each in a sentence.

    `latest_s` is how much longer than its bound the longest lived, `told_s` how much later than its
    own the last training was told to end; less than LOAD_S is no leak and not found.
    """

    leaked_usd: float = 0.0
    double_bought: int = 0
    forgotten: int = 0
    false_deaths: int = 0
    killed_foreign: int = 0
    killed_early: int = 0
    found: list[str] = field(default_factory=list)
    latest_s: float = float("-inf")
    told_s: float = float("-inf")

    @property
    def clean(self) -> bool:
        return not self.leaked_usd and not any(self._counts()) and not self.found

    def plus(self, other: "Verdict") -> "Verdict":
        counts = [a + b for a, b in zip(self._counts(), other._counts(), strict=True)]
        leaked_usd = round(self.leaked_usd + other.leaked_usd, 2)
        latest_s = max(self.latest_s, other.latest_s)
        told_s = max(self.told_s, other.told_s)
        found = self.found + other.found
        return Verdict(leaked_usd, *counts, found=found, latest_s=latest_s, told_s=told_s)

    def line(self, schedules: int) -> str:
        """The last line of `python -m tests.chaos`."""
        words = [f"schedules={schedules}", f"leaked_usd={self.leaked_usd:.2f}"]
        counted = zip(COUNTS, self._counts(), strict=True)
        return " ".join([*words, *(f"{name}={count}" for name, count in counted)])

    def _counts(self) -> list[int]:
        return [getattr(self, name) for name in COUNTS]


@dataclass(frozen=True, slots=True)
class Passing:
    """A line of points.log."""

    who: str
    point: str
    nth: int
    label: str
    at_s: float


def passings(machine: Machine) -> list[Passing]:
    log = machine.folder / "points.log"
    lines = log.read_text().splitlines() if log.exists() else []
    split = [line.split("|") for line in lines]
    return [
        Passing(who, point, int(nth), label, float(at_s))
        for who, point, nth, label, at_s, _pid in split
    ]


@dataclass(frozen=True, slots=True)
class Side:
    """What one machine answers for: its boxes, and until when it could not act."""

    machine: Machine
    withheld: Withheld
    lives: list[Life]
    aways: list[Away]
    now_s: float


def judge(schedule: Schedule, played: Played) -> Verdict:
    verdict = Verdict()
    if played.watcher.broken:
        verdict.found.append(f"the meter broke: {played.watcher.broken}")
    for life in played.watcher.lives:
        if life.foreign and life.died_s is not None:
            verdict.killed_foreign += 1
            verdict.found.append(f"{life.label} of somebody else was ended")
    theirs = [life for life in played.watcher.lives if _is_of_second(life, played.beside)]
    ours = [life for life in played.watcher.lives if not life.foreign and life not in theirs]
    aways, withheld = [*played.aways, *played.outages], played.watcher.withheld
    _judge_side(verdict, schedule, Side(played.machine, withheld, ours, aways, played.now_s))
    if (beside := played.beside) is not None and not beside.is_copy:
        side = Side(beside.machine, withheld, theirs, played.outages, played.now_s)
        _judge_side(verdict, _of_second(schedule), side)
    _forgotten(verdict, played)
    _as_was_wanted(verdict, schedule, played)
    return verdict


def _of_second(schedule: Schedule) -> Schedule:
    """What was done to the other machine: all of its boxes were ended, and it has our disk."""
    full = [deed for deed in schedule.deeds if deed.do == "disk full"]
    return replace(schedule, deeds=(Deed("gpurun", words=("kill", "--all", "--yes")), *full))


def _is_of_second(life: Life, beside: Beside | None) -> bool:
    """Whether its label bears the owner id of the other machine, which has a journal of its own."""
    if beside is None or beside.is_copy:
        return False
    return [(life.owner,)] == beside.machine.rows("select owner_id from owner")


def _judge_side(verdict: Verdict, schedule: Schedule, side: Side) -> None:
    passed = passings(side.machine)
    for life in side.lives:
        _lived_too_long(verdict, schedule, side, life)
        if not _was_refused(life, passed) and not _is_half_made(schedule, life, passed):
            _died_too_soon(verdict, schedule, side, life)
        _told_too_late(verdict, schedule, side, life)
        _said_to_be_gone(verdict, life, passed)
    _bought_twice(verdict, side.lives, passed)


@dataclass(frozen=True, slots=True)
class Timer:
    seq: int
    kind: str
    state: str
    fires_s: float
    ends_s: float


def _timers(machine: Machine, label: str) -> list[Timer]:
    """Those that were in force, as they came."""
    return [one for one in _written(machine, label) if one.state != "arming"]


def _written(machine: Machine, label: str) -> list[Timer]:
    query = f"select seq, kind, state, fires_boot_s, ends_boot_s from timers where label='{label}'"
    found = [
        Timer(int(seq), str(kind), str(state), float(fires_s), float(ends_s))
        for seq, kind, state, fires_s, ends_s in machine.rows(query)
    ]
    return sorted(found, key=lambda one: one.seq)


def _lived_too_long(verdict: Verdict, schedule: Schedule, side: Side, life: Life) -> None:
    timers = _timers(side.machine, life.label)
    if not timers:
        return  # forgotten, which is counted there
    ends_s = timers[-1].ends_s
    slept = any(deed.do == "sleep" for deed in schedule.deeds)
    if life.launched_s is not None:
        minutes = schedule.run_minutes + schedule.grace_minutes + schedule.extended_minutes
        allowed_s = life.launched_s + minutes * 60 + SLACK_S
        ends_s = min(ends_s, _late_s(allowed_s, side.aways) if slept else allowed_s)
    due_s = min(_due_s(ends_s + AT_E_S, side.aways), _fuse_due_s(side.machine, life.label, timers))
    if life.back_s is not None:
        due_s = max(due_s, life.back_s + BACK_S)
    died_s = side.now_s if life.died_s is None else life.died_s
    over_s = died_s - due_s - side.withheld.between_s(ends_s, died_s)
    leaked_usd = round(max(0.0, over_s) * life.usd_per_hour / 3600, 2)
    verdict.latest_s = max(verdict.latest_s, over_s)
    if leaked_usd > 0:
        verdict.leaked_usd += leaked_usd
        verdict.found.append(
            f"{life.label} lived {over_s:.1f} s longer than it may (${leaked_usd:.2f}), "
            f"{died_s - ends_s:.1f} s longer than its timer"
        )


def _late_s(ends_s: float, aways: list[Away]) -> float:
    """Until when that may be collected once more whose end was slept past."""
    missed_s = [away.until_s - ends_s for away in aways if away.since_s <= ends_s < away.until_s]
    return ends_s if not missed_s else ends_s + max(missed_s) + min(max(missed_s), LATE_COLLECT_S)


def _due_s(due_s: float, aways: list[Away]) -> float:
    """When it must be done at the latest: when it is due, or soon after somebody could do it."""
    for away in sorted(aways, key=lambda one: one.since_s):
        if away.since_s - AGAIN_S <= due_s < away.until_s + AGAIN_S:
            due_s = away.until_s + AGAIN_S
    return due_s


def _fuse_due_s(machine: Machine, label: str, timers: list[Timer]) -> float:
    """When the fuse ends it at the latest, by the timer that it was last read to hold.

    Where it can end the bill: else, with nobody of ours alive, the box lives on.
    """
    query = f"select seq_read from guards where label='{label}' and name='fuse'"
    found = machine.rows(f"{query} and read_back_at is not null and ends_bill")
    held = [timer.ends_s for timer in timers if [(timer.seq,)] == found]
    slept = (machine.folder / "boot_shift").exists()  # the box has not: its uptime decides
    return math.inf if slept or not held else held[0] + FUSE_MARGIN_S + FUSE_S


def _was_refused(life: Life, passed: list[Passing]) -> bool:
    """By its provider, who began to make it, could not, and took it back before it said so."""
    return any(one.point == "Cloud.create refused" and one.label == life.label for one in passed)


def _is_half_made(schedule: Schedule, life: Life, passed: list[Passing]) -> bool:
    """On this machine a driver makes its box itself: killed meanwhile, it leaves one that never
    starts, and whose run fails as it should.
    """
    points = {one.point for one in passed if one.label == life.label}
    return (
        schedule.provider == "local"
        and "before Cloud.create" in points
        and "Cloud.create" not in points
    )


def _died_too_soon(verdict: Verdict, schedule: Schedule, side: Side, life: Life) -> None:
    if life.died_s is None:
        return
    query = f"select ending from runs where id='{life.run}'"
    [[ending]] = side.machine.rows(query) or [(None,)]
    if schedule.excuses(None if ending is None else str(ending)):
        return
    fires_s = _fires_s(side.machine, life.label)
    if life.died_s < fires_s - SLACK_S:
        verdict.killed_early += 1
        early_s = fires_s - life.died_s
        verdict.found.append(f"{life.label} was ended {early_s:.1f} s before its timer ({ending})")


def _fires_s(machine: Machine, label: str) -> float:
    """By the last timer in force, or by one that the fuse was given and whose driver died before it
    could put it in force: the earliest ends the run (W1).  With neither, no end is too soon.
    """
    own = [timer for timer in _timers(machine, label) if timer.kind != "ending"][-1:]
    held = machine.rows(f"select seq_read from guards where label='{label}' and name='fuse'")
    given = [
        timer
        for timer in _written(machine, label)
        if timer.state == "arming" and timer.kind != "ending" and [(timer.seq,)] == held
    ]
    return min((timer.fires_s for timer in own + given), default=-math.inf)


def _told_too_late(verdict: Verdict, schedule: Schedule, side: Side, life: Life) -> None:
    """Its training, by SIGTERM at `fires_at`: where its driver lived, who alone can reach it.

    One that ends by itself may be over by then, with nobody left to be told.
    """
    if not schedule.spares_drivers or schedule.train == "ends" or life.launched_s is None:
        return
    if side.machine.rows(f"select ending from runs where id='{life.run}'") != [("deadline",)]:
        return
    own = [timer for timer in _timers(side.machine, life.label) if timer.kind != "ending"]
    told_s = side.now_s if life.told_s is None else life.told_s
    fires_s = own[-1].fires_s
    late_s = told_s - _due_s(fires_s + AT_T_S, side.aways)
    late_s -= side.withheld.between_s(fires_s, told_s)
    verdict.told_s = max(verdict.told_s, late_s)
    if late_s > LOAD_S:
        verdict.found.append(f"{life.label} was told to end {late_s:.1f} s too late")


def _said_to_be_gone(verdict: Verdict, life: Life, passed: list[Passing]) -> None:
    """While it was listed, that is: of what a provider hides nobody can know."""
    said = [
        one.at_s
        for one in passed
        if one.point == "Attempts.gone"
        and one.label == life.label
        and not life.was_hidden(one.at_s - SLACK_S)
    ]
    if said and (life.died_s is None or life.died_s > min(said) + SLACK_S):
        verdict.false_deaths += 1
        verdict.found.append(f"{life.label} was said to be gone while it lived")


def _bought_twice(verdict: Verdict, ours: list[Life], passed: list[Passing]) -> None:
    sent = Counter(one.label for one in passed if one.point == "before Cloud.create")
    twice = {label for label, count in sent.items() if count > 1}
    for index, life in enumerate(ours):
        for other in ours[index + 1 :]:
            if life.run == other.run and (life.died_s is None or other.born_s < life.died_s):
                twice.add(life.label)
    verdict.double_bought += len(twice)
    verdict.found += [f"{label} was bought twice" for label in sorted(twice)]


def _forgotten(verdict: Verdict, played: Played) -> None:
    living = played.watcher.alive()
    for life in living:
        verdict.forgotten += 1
        verdict.found.append(f"{life.label} lives on")
    if not living and (left := _processes(played)):
        verdict.forgotten += 1
        verdict.found.append(f"processes of a box live on: {left}")
    if not living and not played.over:
        for machine in _machines(played):
            state = machine.rows("select state, phase, error from runs")
            labels = machine.rows("select label, state from instances")
            verdict.found.append(f"not over after {played.seconds:.0f} s: {state} {labels}")


def _as_was_wanted(verdict: Verdict, schedule: Schedule, played: Played) -> None:
    refused = [code for code in played.up_codes if code is not None and code > 0]
    if refused and not (schedule.beside == SECOND_UP and schedule.disturbs):
        verdict.found.append(f"`up` ended with {refused}: {played.said}")
    if "takes --yes" in played.said:
        verdict.found.append(f"a command waited for a yes, and did nothing: {played.said}")
    found = played.machine.rows("select state, error from runs")
    wanted = [schedule.only] * (2 if schedule.beside == SECOND_UP else 1)
    if schedule.only and [state for state, _ in found] != wanted:
        verdict.found.append(f"it came to {found}, not to {wanted}")
    if played.beside is not None and played.beside.is_copy:
        _copy_did_nothing(verdict, schedule, played.beside)
    elif played.beside is not None and schedule.only:
        found = played.beside.machine.rows("select state, error from runs")
        if [state for state, _ in found] != ["killed"]:
            verdict.found.append(f"that of the other machine came to {found}, not to killed")


def _copy_did_nothing(verdict: Verdict, schedule: Schedule, copy: Beside) -> None:
    """It may look, and say why it does not act (W7)."""
    told = [one for one in passings(copy.machine) if "Cloud." in one.point]
    verdict.double_bought += sum(one.point == "before Cloud.create" for one in told)
    verdict.killed_foreign += sum(one.point == "before Cloud.destroy" for one in told)
    verdict.found += [f"the copy passed {one.point} of {one.label}" for one in told]
    if schedule.only and copy.said().count("another machine") < 2:  # by `resume` and by `up`
        verdict.found.append(f"the copy was not refused: {copy.said()}")


def _machines(played: Played) -> list[Machine]:
    beside = played.beside
    return [played.machine, *([] if beside is None or beside.is_copy else [beside.machine])]


def _processes(played: Played) -> list[int]:
    """Those of boxes of this machine, but for the box that is somebody else's."""
    found = []
    for pid in [pid for each in _machines(played) for pid in each.home.box_processes()]:
        with suppress(OSError):
            if FOREIGN.encode() not in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return found
