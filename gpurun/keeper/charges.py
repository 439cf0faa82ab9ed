"""What the keeper must end, and when: from the journal, and from the black box without one."""

import logging
from dataclasses import dataclass, replace
from datetime import datetime

from gpurun.blackbox import KILLING, BlackBox, Entry
from gpurun.clock import Clock
from gpurun.keeper.lagging import Laggard, Laggards, brought_forward
from gpurun.model import SETTLED, Attempt, AttemptState, Instance, Timer
from gpurun.proof import Evidence
from gpurun.store import Journal
from gpurun.store.armed import armed, states
from gpurun.timers import ends_in_s, evidence_of, fires_in_s

log = logging.getLogger("gpurun.keeper")

NOT_BILLING = (*SETTLED, AttemptState.INTENT)


@dataclass(frozen=True, slots=True)
class Charge:
    """One label that may bill, with the deadline in force."""

    label: str
    provider: str
    account: str
    instance_id: str | None
    seq: int
    fires_at: datetime
    ends_at: datetime
    timer: Timer | None  # None: known from the black box alone
    attempt: Attempt | None
    laggard: Laggard | None = None  # the guard that brings the timer forward
    killed: bool = False  # a person has said so, or it has come back: no clock is asked
    by_id: bool = False  # this very box, whatever others bear its label: no row of ours is of it
    created_at: datetime | None = None  # by the provider, of one that is known by its id alone

    @property
    def key(self) -> tuple[str, str | None]:
        """What it is one of: its label has one box, and what has come back beside that."""
        return self.label, self.instance_id if self.by_id else None

    @property
    def is_ending(self) -> bool:
        """Its timer has fired, or it was ended otherwise: nothing is left but to end it in time."""
        return self.attempt is None or self.attempt.ending is not None

    def is_certain(self, clock: Clock) -> bool:
        """Whether the boot clock holds it, or a person has ended it: whatever the time of day."""
        return self.killed or (self.timer is not None and self.timer.boot_id == clock.boot_id)

    def fires(self, clock: Clock) -> bool:
        if self.killed:
            return True
        if self.timer is not None:
            return fires_in_s(self.timer, clock) <= 0
        return clock.now() >= self.fires_at

    def ends(self, clock: Clock) -> bool:
        if self.killed:
            return True
        if self.timer is not None:
            return ends_in_s(self.timer, clock) <= 0
        return clock.now() >= self.ends_at

    def why(self) -> str:
        """It fires: in words for a person."""
        kind = "" if self.timer is None else f"{self.timer.kind} "
        if self.laggard is None:
            return f"the {kind}timer fired at {self.fires_at:%H:%M:%S} UTC"
        return (
            f"its {self.laggard.name} could not be moved to the {kind}timer, and ends the box at "
            f"{self.laggard.acts_at:%H:%M:%S} UTC"
        )

    def evidence(self, clock: Clock) -> Evidence:
        """To begin with: nothing has been asked yet."""
        if self.attempt is None:
            return Evidence(
                self.account,
                self.label,
                self.instance_id,
                seen=self.by_id,
                boot_id=clock.boot_id,
                created_at=self.created_at,
            )
        return evidence_of(self.attempt, clock)


class Charges:
    """What may bill, by the journal; by the black box what the journal cannot tell."""

    def __init__(self, journal: Journal, blackbox: BlackBox, laggards: Laggards) -> None:
        self._journal = journal
        self._blackbox = blackbox
        self._laggards = laggards

    def read(self) -> list[Charge]:
        known: dict[str, Charge] = {}
        settled: set[str] = set()
        try:
            for attempt, timer in armed(self._journal.database):
                known[attempt.label] = self._charge(attempt, timer)
            entries = self._entries()
            others = states(self._journal.database, [each for each in entries if each not in known])
            settled = {label for label, state in others.items() if state in NOT_BILLING}
        except Exception as error:  # whatever the journal is like, the boxes end
            log.error("the journal cannot be read (%s); going by %s", error, self._blackbox.path)
            entries = self._entries()
        for label, entry in entries.items():
            if label in known and entry.state == KILLING:
                known[label] = killed(known[label], entry)
            if label not in known and label not in settled and (charge := from_blackbox(entry)):
                known[label] = charge
        return list(known.values())

    def _charge(self, attempt: Attempt, timer: Timer) -> Charge:
        try:
            return from_journal(attempt, timer, self._laggards.of(attempt, timer))
        except Exception as error:  # what a guard is said to hold keeps no timer from its end
            log.error("%s: its guards cannot be told: %s", attempt.label, error)
            return from_journal(attempt, timer)

    def _entries(self) -> dict[str, Entry]:
        try:
            return self._blackbox.read()
        except OSError as error:
            log.error("%s cannot be read: %s", self._blackbox.path, error)
            return {}


def from_journal(attempt: Attempt, timer: Timer, late: Laggard | None = None) -> Charge:
    """`late`: a guard that ends the box before this timer does."""
    if late is not None:
        timer = brought_forward(timer, late)
    return Charge(
        label=attempt.label,
        provider=attempt.provider,
        account=attempt.account_id,
        instance_id=attempt.instance_id,
        seq=timer.seq,
        fires_at=timer.fires_at,
        ends_at=timer.ends_at,
        timer=timer,
        attempt=attempt,
        laggard=late,
    )


def killed(charge: Charge, entry: Entry) -> Charge:
    """It ends now: a person has said so, and the journal could not be told."""
    ends_at = entry.ends_at
    return replace(charge, timer=None, fires_at=entry.fires_at, ends_at=ends_at, killed=True)


def known_by_id(charge: Charge, instance_id: str | None, created_at: datetime | None) -> Charge:
    """Another box than the one that its label has: it ends now, whatever becomes of that."""
    return replace(
        charge,
        instance_id=instance_id,
        created_at=created_at,
        timer=None,
        attempt=None,
        killed=True,
        by_id=True,
    )


def come_back(attempt: Attempt, row: Instance, clock: Clock) -> Charge:
    """It ends now, by its id alone: listed though its label is settled, or was never seen."""
    now = clock.now()
    return Charge(
        label=attempt.label,
        provider=attempt.provider,
        account=attempt.account_id,
        instance_id=row.id,
        seq=0,
        fires_at=now,
        ends_at=now,
        timer=None,
        attempt=None,
        killed=True,
        by_id=True,
        created_at=row.created_at,
    )


def from_blackbox(entry: Entry) -> Charge | None:
    """None of a label that is settled, or was never sent."""
    if entry.settled or entry.state == AttemptState.INTENT:
        return None
    return Charge(
        label=entry.label,
        provider=entry.provider,
        account=entry.account,
        instance_id=entry.instance_id,
        seq=entry.seq,
        fires_at=entry.fires_at,
        ends_at=entry.ends_at,
        timer=None,
        attempt=None,
        killed=entry.state == KILLING,
    )
