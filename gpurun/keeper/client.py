"""What a driver asks of the keeper before it may rent (protocol R1, R4)."""

from datetime import timedelta

from gpurun import __version__, keeper
from gpurun.clock import Clock, Deadline
from gpurun.errors import ProviderError
from gpurun.model import Timer
from gpurun.places import Places
from gpurun.provider import Provisioner
from gpurun.store import Journal

BEAT_WITHIN_S = 3.0
LISTED_WITHIN_S = 60.0
WAIT_S = 30.0


def listening(places: Places, journal: Journal, cloud: Provisioner, clock: Clock) -> None:
    """R1: a live keeper of this version that has listed this account with its own key."""
    word = journal.keepers.word()
    if word is not None and word.version != __version__ and keeper.running(places):
        keeper.stop(places)
    account = cloud.account()
    deadline = Deadline(WAIT_S)
    while not deadline.passed():
        keeper.start(places)
        if _beats(journal, clock) and _has_listed(journal, cloud.name, account, clock):
            return
    known = journal.keepers.account(cloud.name, account)
    why = known.detail if known and known.detail else "it has not answered"
    raise ProviderError(
        f"the keeper cannot watch {cloud.name} account {account}: {why}. Nothing was rented. "
        f"See {places.keeper_log}, then `gpurun keeper status`."
    )


def acknowledged(journal: Journal, timer: Timer, clock: Clock, within_s: float) -> bool:
    """R4: the keeper holds this timer."""
    deadline = Deadline(within_s)
    while not deadline.passed():
        if journal.timers.acknowledged(timer.label, timer.seq):
            return True
    return False


def _beats(journal: Journal, clock: Clock) -> bool:
    word = journal.keepers.word()
    return word is not None and clock.now() - word.beat_at <= timedelta(seconds=BEAT_WITHIN_S)


def _has_listed(journal: Journal, provider: str, account: str, clock: Clock) -> bool:
    known = journal.keepers.account(provider, account)
    if known is None or not known.auth_ok or known.listed_at is None:
        return False
    return clock.now() - known.listed_at <= timedelta(seconds=LISTED_WITHIN_S)
