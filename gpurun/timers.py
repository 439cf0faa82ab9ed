"""One label's deadline, as the journal, the black box and the proof each write it down."""

from datetime import datetime

from gpurun.blackbox import Entry
from gpurun.clock import Clock
from gpurun.model import Attempt, Timer
from gpurun.proof import Evidence


def entry_of(attempt: Attempt, timer: Timer, state: str) -> Entry:
    return Entry(
        seq=timer.seq,
        label=attempt.label,
        provider=attempt.provider,
        account=attempt.account_id,
        instance_id=attempt.instance_id,
        usd_per_hour=attempt.usd_per_hour,
        fires_at=timer.fires_at,
        ends_at=timer.ends_at,
        ceiling_at=attempt.ceiling_at,
        state=state,
    )


def evidence_of(attempt: Attempt, clock: Clock) -> Evidence:
    """The evidence of an end, to begin with: nothing has been asked yet."""
    return Evidence(
        attempt.account_id,
        attempt.label,
        attempt.instance_id,
        seen=attempt.first_seen_at is not None,
        boot_id=clock.boot_id,
        created_at=attempt.created_at,
        sent_at=attempt.sent_at,
    )


def fires_in_s(timer: Timer, clock: Clock) -> float:
    """Seconds until training must stop; negative once that is past.

    Within one boot the boot clock decides: processes may disagree about the time of day.
    """
    if timer.boot_id == clock.boot_id:
        return timer.fires_boot_s - clock.boot_s()
    return (timer.fires_at - clock.now()).total_seconds()


def ends_in_s(timer: Timer, clock: Clock) -> float:
    """Seconds until the box must go, by the same rule."""
    if timer.boot_id == clock.boot_id:
        return timer.ends_boot_s - clock.boot_s()
    return (timer.ends_at - clock.now()).total_seconds()


def timer_for(
    label: str, seq: int, kind: str, fires_at: datetime, ends_at: datetime, clock: Clock
) -> Timer:
    """A timer with the same instants on the boot clock."""
    now, boot_s = clock.now(), clock.boot_s()
    return Timer(
        label=label,
        seq=seq,
        kind=kind,
        fires_at=fires_at,
        ends_at=ends_at,
        boot_id=clock.boot_id,
        fires_boot_s=boot_s + (fires_at - now).total_seconds(),
        ends_boot_s=boot_s + (ends_at - now).total_seconds(),
    )
