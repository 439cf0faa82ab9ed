"""What `up` and its driver want of the keeper before anything is rented (protocol R1, R4)."""

from contextlib import suppress
from datetime import timedelta

from gpurun import __version__, keeper, wiring
from gpurun.clock import Clock, Deadline
from gpurun.errors import ProviderError, UsageError
from gpurun.keeper import handed
from gpurun.model import Timer
from gpurun.places import Places
from gpurun.provider import Provisioner
from gpurun.settings import Settings
from gpurun.store import Journal

BEAT_WITHIN_S = 3.0
LISTED_WITHIN_S = 60.0
WAIT_S = 30.0
_FLEETING = (
    "the key of {cloud} is in this shell's environment alone: {so}. `gpurun auth {cloud}` stores it"
)
_NOWHERE = (
    "there is no folder in memory to hand it over in, so the keeper is no guard of this box once "
    "another shell has started it"
)
_UNTIL_LOGOUT = "the keeper is a guard of this box only until you log out or this machine restarts"


def key_remark(cloud: str, settings: Settings) -> str:
    """Which guard is missing while the key is not stored; empty where it is (F17)."""
    if cloud not in wiring.CLOUDS or not wiring.only_here(cloud, settings):
        return ""
    nowhere = handed.place(handed.folders()) is None
    return _FLEETING.format(cloud=cloud, so=_NOWHERE if nowhere else _UNTIL_LOGOUT)


def require_one_account(
    places: Places, journal: Journal, cloud: str, account: str, settings: Settings
) -> None:
    """UsageError if our key is another account's than that of a box which the keeper must end."""
    if not _is_news(places, cloud, settings):
        return
    for attempt in journal.attempts.live(cloud):
        if attempt.account_id != account:
            raise UsageError(
                f"run {attempt.run_id} has a box at {cloud} account {attempt.account_id}, and the "
                f"key in this shell is that of account {account}: with it the keeper could not end "
                "that box. Nothing was rented. Wait for its end, or set another GPURUN_HOME."
            )


def hand_key(places: Places, cloud: str, settings: Settings) -> None:
    """Let the keeper have the key that this shell's environment alone holds.

    The run is in the journal already: the key stays as long as one is live.
    """
    if _is_news(places, cloud, settings):
        with suppress(OSError):  # what that means was said before (key_remark)
            handed.hand(places, cloud, wiring.only_here(cloud, settings))


def _is_news(places: Places, cloud: str, settings: Settings) -> bool:
    """Whether the keeper has something else than this shell."""
    if cloud not in wiring.CLOUDS:
        return False
    return wiring.only_here(cloud, settings) != handed.read(places).get(cloud, {})


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
