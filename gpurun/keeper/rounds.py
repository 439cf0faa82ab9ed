"""Ending boxes: each label in a round of its own, retried without end, off the keeper's thread."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from gpurun.clock import Clock
from gpurun.errors import GpurunError
from gpurun.keeper.charges import Charge
from gpurun.proof import Evidence, Verdict
from gpurun.provider import Provisioner
from gpurun.reaper import pursue

log = logging.getLogger("gpurun.keeper")

RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


@dataclass(slots=True)
class Case:
    """One box on its way to its proven end."""

    evidence: Evidence
    due_s: float  # boot clock
    failures: int = 0
    busy: bool = False
    why: str = ""


class Rounds:
    """The boxes being ended.  `step` is called each tick and never waits."""

    def __init__(
        self,
        cloud_of: Callable[[str], Provisioner],
        clock: Clock,
        on_round: Callable[[Charge, Evidence, Verdict], None],
    ) -> None:
        self._cloud_of = cloud_of
        self._clock = clock
        self._on_round = on_round
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="round")
        self._cases: dict[str, Case] = {}

    def working(self) -> bool:
        """Whether a round is under way right now."""
        return any(case.busy for case in list(self._cases.values()))

    def step(self, charge: Charge) -> None:
        """Start the next round for this box if it is due."""
        fresh = Case(charge.evidence(self._clock), self._clock.boot_s())
        case = self._cases.setdefault(charge.label, fresh)
        if case.busy or case.due_s > self._clock.boot_s():
            return
        case.busy = True
        self._pool.submit(self._round, charge, case)

    def _round(self, charge: Charge, case: Case) -> None:
        try:
            cloud = self._cloud_of(charge.provider)
            if case.evidence.instance_id is None:  # its driver may have learnt it since
                case.evidence = replace(case.evidence, instance_id=charge.instance_id)
            case.evidence, verdict = pursue(case.evidence, cloud, self._clock)
            case.failures = 0 if case.evidence.acked_s is not None else case.failures + 1
            gap_s = cloud.traits.proof_gap_s
        except GpurunError as error:
            verdict, gap_s = Verdict(False, str(error)), RETRY_S[0]
            case.failures += 1
        except Exception:  # the keeper lives; the box is tried again
            log.exception("ending %s failed", charge.label)
            verdict, gap_s = Verdict(False, "a bug in gpurun; see the keeper's log"), RETRY_S[-1]
        if verdict.why != case.why:
            case.why = verdict.why
            log.info("%s: %s", charge.label, verdict.why)
        wait_s = RETRY_S[min(case.failures, len(RETRY_S)) - 1] if case.failures else gap_s
        case.due_s = self._clock.boot_s() + wait_s
        try:
            self._on_round(charge, case.evidence, verdict)
        except Exception:
            log.exception("recording the round of %s failed", charge.label)
        case.busy = False
        if verdict.gone:
            self._cases.pop(charge.label, None)
