"""Timers that are ahead of the one in force: half of an `extend`, and a guard that knows more.

An `extend` that died between its writes has paid for its timer: it is put in force here, and the
guards that it did not reach are found to lag (protocol 8).  A guard that holds a later timer than
the journal has ever given it says that the whole directory was restored: its end counts, as far as
it is paid for, and nothing is bought until a human has looked (W6).
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from gpurun.blackbox import BlackBox
from gpurun.clock import Clock
from gpurun.engine.limits import period_caps
from gpurun.keeper.merge import UNTIL_ADOPTED
from gpurun.model import Timer
from gpurun.provider import Provisioner
from gpurun.settings import Settings
from gpurun.store import Journal
from gpurun.store.followed import Ahead, follow, guards_ahead
from gpurun.timers import entry_of

log = logging.getLogger("gpurun.keeper")

LOOK_EVERY_S = 10.0
LET_BE_S = 20.0  # whoever extends is let be
RESTORED = (
    "a guard of a box knows of a later timer than the journal: the state directory was restored. "
    f"{UNTIL_ADOPTED}"
)


class AheadOfJournal:
    """`step` is called each tick."""

    def __init__(
        self,
        cloud_of: Callable[[str], Provisioner],
        clock: Clock,
        journal: Journal,
        blackbox: BlackBox,
        settings: Settings,
    ) -> None:
        self._cloud_of = cloud_of
        self._clock = clock
        self._journal = journal
        self._blackbox = blackbox
        self._settings = settings
        self._looked_s = float("-inf")
        self._half_since_s: dict[tuple[str, int], float] = {}

    def step(self) -> None:
        now_s = self._clock.boot_s()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        half = {(timer.label, timer.seq): timer for timer in self._journal.timers.half_done()}
        self._half_since_s = {key: self._half_since_s.get(key, now_s) for key in half}
        for key, timer in half.items():
            if now_s - self._half_since_s[key] >= LET_BE_S:
                with _alone(timer.label):
                    self._complete(timer)
        for guard in guards_ahead(self._journal.database):
            with _alone(guard.label):
                self._follow(guard)

    def _complete(self, timer: Timer) -> None:
        if self._journal.timers.put_in_force(timer):
            said = "`gpurun extend` was stopped half way; the keeper has put its timer in force"
            self._say(timer, said)

    def _follow(self, guard: Ahead) -> None:
        provider = self._journal.attempts.get(guard.label).provider
        traits = self._cloud_of(provider).traits
        caps = period_caps(self._settings, provider, self._clock.now())
        timer = follow(self._journal.database, self._clock, guard, traits, caps)
        if timer is None:
            return
        self._journal.owner.distrust(RESTORED)
        self._say(timer, f"the {guard.name} held a later timer than the journal, which is older")
        with suppress(OSError):
            attempt = self._journal.attempts.get(guard.label)
            self._blackbox.append(entry_of(attempt, timer, attempt.state.value))

    def _say(self, timer: Timer, what: str) -> None:
        said = f"{what}: it ends the box at {timer.ends_at:%H:%M:%S} UTC"
        log.error("%s: %s", timer.label, said)
        run_id = self._journal.attempts.get(timer.label).run_id
        self._journal.runs.event(run_id, "note", said, timer.label)


@contextmanager
def _alone(label: str) -> Iterator[None]:
    """What stands in the way of one, be it a damaged row, keeps no other waiting."""
    try:
        yield
    except Exception as error:
        log.error("%s: its later timer cannot be followed: %s", label, error)
