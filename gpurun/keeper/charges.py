"""What the keeper must end, and when: from the journal, and from the black box without one."""

from dataclasses import dataclass, replace
from datetime import datetime

from gpurun.blackbox import KILLING, Entry
from gpurun.clock import Clock
from gpurun.keeper.lagging import Laggard, brought_forward
from gpurun.model import Attempt, AttemptState, Timer
from gpurun.proof import Evidence
from gpurun.timers import ends_in_s, evidence_of, fires_in_s


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
    killed: bool = False  # a person has said so: no clock is asked

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
            return Evidence(self.account, self.label, self.instance_id, boot_id=clock.boot_id)
        return evidence_of(self.attempt, clock)


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
