"""Ending boxes: each label a case of its own, retried without end, off the keeper's thread.

What bills is asked to end first: DELETEs and looks have threads of their own, and each provider has
its own of both, so that none waits for a long list, nor for another one's slow account.  A list
serves every box that waits for one when it begins.
"""

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from gpurun.atonce import ask_each
from gpurun.clock import Clock
from gpurun.errors import GpurunError
from gpurun.keeper.charges import Charge, known_by_id
from gpurun.model import Instance
from gpurun.proof import Evidence, Verdict
from gpurun.provider import Provisioner
from gpurun.reaper import Holdings, ask, ask_for_many, holdings, look, twins_of

log = logging.getLogger("gpurun.keeper")

RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
MANY_WITHIN_S = 5.0  # an answer for many boxes; Vast takes such a request every 3 s
THREADS = 8


@dataclass(slots=True)
class Case:
    """One box on its way to its proven end."""

    charge: Charge
    evidence: Evidence
    since_s: float  # boot clock
    due_s: float
    failures: int = 0
    busy: bool = False
    why: str = ""

    def is_of_another(self, charge: Charge) -> bool:
        """Whether the charge is for another box under the same label."""
        known, asked = self.evidence.instance_id, charge.instance_id
        return known is not None and asked is not None and known != asked


@dataclass(slots=True)
class _Lane:
    """One provider: the cases that are due, and those that wait for its next list."""

    asking: ThreadPoolExecutor
    looking: ThreadPoolExecutor
    due: list[Case] = field(default_factory=list)
    waiting: list[Case] = field(default_factory=list)
    asks_for_many: bool = False
    listing: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Rounds:
    """The boxes being ended.  `step` and `begin` are called each tick and never wait.

    `shows` says whether a list of just now has this box as what it was bought as.
    """

    def __init__(
        self,
        cloud_of: Callable[[str], Provisioner],
        clock: Clock,
        on_round: Callable[[Charge, Evidence, Verdict], None],
        shows: Callable[[str, Evidence], bool],
    ) -> None:
        self._cloud_of = cloud_of
        self._clock = clock
        self._on_round = on_round
        self._shows = shows
        self._lanes: dict[str, _Lane] = {}
        self._cases: dict[tuple[str, str | None], Case] = {}

    def working(self) -> bool:
        """Whether a round is under way right now."""
        return any(case.busy for case in list(self._cases.values()))

    def lasting(self, seconds: float) -> list[tuple[Charge, float]]:
        """Those that are being ended for longer than that, and for how long."""
        now_s = self._clock.boot_s()
        lasts = [(case.charge, now_s - case.since_s) for case in list(self._cases.values())]
        return [(charge, lasts_s) for charge, lasts_s in lasts if lasts_s > seconds]

    def keep(self, labels: Collection[str]) -> None:
        """Forget the others: another process has proven their end, and what was gathered before
        that counts no more, should such a label come back.  What is ended by its id stays until
        that is proven, for nobody else knows of it.
        """
        for key, case in list(self._cases.items()):
            if case.charge.label not in labels and not case.busy and not case.charge.by_id:
                self._cases.pop(key, None)

    def pursues(self) -> bool:
        """Whether something is being ended by its id, of which no journal knows."""
        return any(case.charge.by_id for case in list(self._cases.values()))

    def step(self, charge: Charge) -> None:
        """This box is to end; `begin` starts its next round if that is due."""
        case = self._cases.get(charge.key)
        if case is not None and not case.busy and case.is_of_another(charge):
            del self._cases[charge.key]
            self._go_on_by_id(case)
            case = None
        if case is None:
            now_s = self._clock.boot_s()
            case = Case(charge, charge.evidence(self._clock), now_s, now_s)
            self._cases[charge.key] = case
        self._next_round(case, charge)

    def _go_on_by_id(self, case: Case) -> None:
        """Its label is known to have another box by now: it may live all the same, and the proof of
        one is not the other's.  One without a date may be anybody's, and is left.
        """
        found = case.evidence
        if found.created_at is not None:
            case.charge = known_by_id(case.charge, found.instance_id, found.created_at)
            self._cases.setdefault(case.charge.key, case)

    def _prove(self, case: Case, twins: Sequence[Instance]) -> None:
        """They were asked to end when its own id was learnt; nobody else asks whether they have."""
        for twin in twins:
            charge, now_s = known_by_id(case.charge, twin.id, twin.created_at), self._clock.boot_s()
            fresh = Case(charge, charge.evidence(self._clock), now_s, now_s)
            self._cases.setdefault(charge.key, fresh)

    def _next_round(self, case: Case, charge: Charge) -> None:
        learnt = case.evidence.instance_id is None and charge.instance_id is not None
        if case.busy or (case.due_s > self._clock.boot_s() and not learnt):
            return
        case.busy, case.charge = True, charge
        if learnt:  # by its driver, or a list: it was never asked for
            case.evidence, case.failures = replace(case.evidence, instance_id=charge.instance_id), 0
        if case.evidence.created_at is None and charge.attempt is not None:
            case.evidence = replace(case.evidence, created_at=charge.attempt.created_at)
        self._lane(charge.provider).due.append(case)

    def begin(self) -> None:
        """Several of one provider are asked for at once, if none of them has failed before."""
        for case in list(self._cases.values()):
            if case.charge.by_id:
                self._next_round(case, case.charge)
        for lane in self._lanes.values():
            due, lane.due = lane.due, []
            to_ask, to_look = _split(due, _is_to_be_asked)
            many, single = _split(to_ask, self._goes_with_others)
            if len(many) < 2:
                single = to_ask
            elif lane.asks_for_many:  # the next request takes all that have come by then
                lane.due += many
            else:
                lane.asks_for_many = True
                lane.asking.submit(self._ask_for_many, lane, many)
            for case in single:
                lane.asking.submit(self._ask, lane, case)
            self._await_list(lane, to_look)

    def _goes_with_others(self, case: Case) -> bool:
        """What has failed, or has not been listed lately, is asked for by itself: it is looked at
        before.
        """
        return not case.failures and self._shows(case.charge.provider, case.evidence)

    def _lane(self, name: str) -> _Lane:
        if name not in self._lanes:
            self._lanes[name] = _Lane(
                ThreadPoolExecutor(THREADS, thread_name_prefix=f"end {name}"),
                ThreadPoolExecutor(THREADS, thread_name_prefix=f"prove {name}"),
            )
        return self._lanes[name]

    def _ask(self, lane: _Lane, case: Case) -> None:
        try:
            cloud = self._cloud_of(case.charge.provider)
            case.evidence = ask(case.evidence, cloud, self._clock)
        except Exception as error:
            self._failed(case, error)
        else:
            self._await_list(lane, [case])

    def _ask_for_many(self, lane: _Lane, cases: list[Case]) -> None:
        """Each of them is asked for by itself if no answer comes soon; a late one counts too."""
        name = cases[0].charge.provider

        def at_once(_name: str) -> None:
            many = [case.evidence for case in cases]
            for case, evidence in zip(
                cases, ask_for_many(many, self._cloud_of(name), self._clock), strict=True
            ):
                if case.evidence.acked_s is None:
                    case.evidence = evidence

        try:
            [heard] = ask_each([name], at_once, self._clock, MANY_WITHIN_S)
            if heard.trouble is not None:
                log.error("asking for the end of %d boxes at once: %s", len(cases), heard.trouble)
        except Exception:
            log.exception("asking for the end of %d boxes at once failed", len(cases))
        lane.asks_for_many = False
        single, asked = _split(cases, _is_to_be_asked)
        for case in single:
            lane.asking.submit(self._ask, lane, case)
        self._await_list(lane, asked)

    def _await_list(self, lane: _Lane, cases: Sequence[Case]) -> None:
        with lane.lock:
            lane.waiting += cases
            idle = bool(lane.waiting) and not lane.listing
            lane.listing = lane.listing or idle
        if idle:
            lane.looking.submit(self._list, lane)

    def _list(self, lane: _Lane) -> None:
        """Until nobody waits for a list any more."""
        while True:
            with lane.lock:
                cases, lane.waiting = lane.waiting, []
                lane.listing = bool(cases)
            if not cases:
                return
            try:
                held = holdings(self._cloud_of(cases[0].charge.provider), self._clock)
            except Exception as error:
                for case in cases:
                    self._failed(case, error)
                continue
            for case in cases:
                lane.looking.submit(self._look, case, held)

    def _look(self, case: Case, held: Holdings) -> None:
        unknown = case.evidence.instance_id is None
        try:
            cloud = self._cloud_of(case.charge.provider)
            twins = twins_of(case.evidence, held.rows)
            case.evidence, verdict = look(case.evidence, held, cloud, self._clock)
            self._prove(case, twins)
            gap_s = cloud.traits.proof_gap_s
        except Exception as error:
            self._failed(case, error)
        else:
            if unknown and case.evidence.instance_id is not None:  # it can be asked for now
                case.failures, gap_s = 0, 0.0
            else:
                case.failures = 0 if case.evidence.acked_s is not None else case.failures + 1
            self._ended(case, verdict, gap_s)

    def _failed(self, case: Case, error: Exception) -> None:
        if isinstance(error, GpurunError):
            case.failures += 1
            self._ended(case, Verdict(False, str(error)), RETRY_S[0])
            return
        # The keeper lives; the box is tried again.
        log.error("ending %s failed", case.charge.label, exc_info=error)
        self._ended(case, Verdict(False, "a bug in gpurun; see the keeper's log"), RETRY_S[-1])

    def _ended(self, case: Case, verdict: Verdict, gap_s: float) -> None:
        """A round has ended, whatever has come of it."""
        label, key = case.charge.label, case.charge.key
        if verdict.why != case.why:
            case.why = verdict.why
            log.info("%s: %s", label, verdict.why)
        failures = min(case.failures, len(RETRY_S))
        case.due_s = self._clock.boot_s() + (RETRY_S[failures - 1] if failures else gap_s)
        try:
            self._on_round(case.charge, case.evidence, verdict)
        except Exception:
            log.exception("recording the round of %s failed", label)
        if verdict.gone and self._cases.get(key) is case:
            del self._cases[key]
        case.busy = False


def _is_to_be_asked(case: Case) -> bool:
    return case.evidence.acked_s is None and case.evidence.instance_id is not None


def _split(cases: list[Case], by: Callable[[Case], bool]) -> tuple[list[Case], list[Case]]:
    """Those of which it is so, and the others."""
    are = [(case, by(case)) for case in cases]
    return [case for case, is_so in are if is_so], [case for case, is_so in are if not is_so]
