"""What is owed to a provider's own timers, without a driver: completed, read back, removed.

A box's timer at its provider is armed by its driver; what the driver could not finish is finished
here, what was left at an older timer is moved, what is held is read again before the knowledge of
it is old, and what is left over after the proof of death is removed.  None of it ever keeps a box
alive or ends one.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

from gpurun.clock import Clock
from gpurun.errors import GpurunError
from gpurun.guards import at_provider, disarm_all
from gpurun.model import Attempt, AttemptState
from gpurun.provider import ProviderTimer, Provisioner, TimersAtOnce
from gpurun.store import Journal
from gpurun.store.timers import GuardWord

log = logging.getLogger("gpurun.keeper")

LOOK_EVERY_S = 10.0
READ_EVERY = timedelta(minutes=10)  # known for 30
LET_BE_S = 20.0  # a driver that is arming it is let be
DISARM_EVERY_S = 60.0
DISARM_FOR = timedelta(days=1)
READ = ("arming", "armed", "unknown", "disarm_due")
TO_ARM = ("none", "arming")
TENDED = (AttemptState.MADE, AttemptState.SEEN)


@dataclass(slots=True)
class _Owed:
    """One guard that is not as it should be."""

    known: tuple[str, int]  # its state, and which timer it is to hold
    due_s: float  # on the boot clock
    busy: bool = False
    due: bool = False  # to be read


class Obligations:
    """`step` is called each tick and never waits."""

    def __init__(
        self, cloud_of: Callable[[str], Provisioner], clock: Clock, journal: Journal
    ) -> None:
        self._cloud_of = cloud_of
        self._clock = clock
        self._journal = journal
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="owed")
        self._owed: dict[tuple[str, str], _Owed] = {}
        self._words: dict[str, list[GuardWord]] = {}
        self._looked_s = float("-inf")

    def working(self) -> bool:
        return any(each.busy for each in list(self._owed.values()))

    def words_of(self, label: str) -> list[GuardWord]:
        """Of the guards of a box that may hold a timer, some seconds old."""
        return self._words.get(label, [])

    def step(self) -> None:
        now_s = self._clock.boot_s()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        timers = self._journal.timers
        words = [*timers.guards(READ), *timers.guards(("none",), "provider")]
        self._words = {}
        for word in words:
            self._words.setdefault(word.label, []).append(word)
        owed = {
            (word.label, word.name): word
            for word in words
            if word.state == "disarm_due" or word.name == "provider"
        }
        for key in set(self._owed) - set(owed):
            self._owed.pop(key, None)
        attempts = self._journal.attempts.find([label for label, _ in owed])
        to_read: dict[str, list[tuple[_Owed, Attempt]]] = {}
        for key, word in owed.items():
            if key[0] in attempts and self._consider(key, word, attempts[key[0]], now_s):
                provider = attempts[key[0]].provider
                to_read.setdefault(provider, []).append((self._owed[key], attempts[key[0]]))
        for name, boxes in to_read.items():
            if any(known.due for known, _ in boxes):  # the others are read along with them
                for known, _ in boxes:
                    known.busy = True
                self._pool.submit(self._read_all, name, boxes)

    def _consider(
        self, key: tuple[str, str], word: GuardWord, attempt: Attempt, now_s: float
    ) -> bool:
        """Begin what is owed; whether it may be read again."""
        known = self._owed.get(key)
        if known is None or known.known != (word.state, word.seq_wanted):
            known = _Owed((word.state, word.seq_wanted), now_s + LET_BE_S)
            self._owed[key] = known
        if known.busy or now_s < known.due_s:
            return False
        now = self._clock.now()
        if word.state == "disarm_due":
            if attempt.gone_at is not None and now - attempt.gone_at < DISARM_FOR:
                known.due_s = now_s + DISARM_EVERY_S
                self._begin(known, attempt, self._disarm)
        elif word.name == "provider" and attempt.state in TENDED and attempt.ending is None:
            if word.state in TO_ARM:
                self._begin(known, attempt, self._arm)
            else:
                age = READ_EVERY * 2 if word.read_back_at is None else now - word.read_back_at
                lags = word.state == "armed" and word.seq_read < word.seq_wanted
                known.due = lags or age > READ_EVERY
                return lags or age > READ_EVERY / 2
        return False

    def _begin(self, owed: _Owed, attempt: Attempt, work: Callable[[Attempt], None]) -> None:
        owed.busy = True
        self._pool.submit(self._do, owed, attempt, work)

    def _do(self, owed: _Owed, attempt: Attempt, work: Callable[[Attempt], None]) -> None:
        try:
            work(attempt)
        except GpurunError as error:
            log.error("the timer of %s at its provider: %s", attempt.label, error)
        except Exception:  # the keeper lives; it is tried again
            log.exception("the timer of %s at its provider failed", attempt.label)
        finally:
            owed.busy = False

    def _arm(self, attempt: Attempt) -> None:
        """For the newest timer, also one that its driver did not live to put in force: it is paid
        for, and what holds it ends the box later than the others.
        """
        guard = at_provider(self._cloud_of(attempt.provider), attempt, self._journal)
        timer = self._journal.timers.newest(attempt.label)
        if guard is not None and timer is not None and (trouble := guard.arm(timer)):
            log.error("the timer of %s at its provider: %s", attempt.label, trouble)

    def _read_all(self, name: str, boxes: Sequence[tuple[_Owed, Attempt]]) -> None:
        """Of one provider: its list is read once, however many boxes are to be found in it."""
        try:
            cloud = self._cloud_of(name)
            held = cloud.provider_timers() if isinstance(cloud, TimersAtOnce) else None
            for _, attempt in boxes:
                self._read(attempt, held)
        except GpurunError as error:
            log.error("the timers at %s: %s", name, error)
        except Exception:  # the keeper lives; it is tried again
            log.exception("reading the timers at %s failed", name)
        finally:
            for known, _ in boxes:
                known.busy = False

    def _read(self, attempt: Attempt, held: Mapping[str, ProviderTimer] | None) -> None:
        """What holds an older timer is moved: it may not have been, when that was tried."""
        guard = at_provider(self._cloud_of(attempt.provider), attempt, self._journal)
        timer = self._journal.timers.newest(attempt.label)
        if guard is None or timer is None or attempt.instance_id is None:
            return
        if held is None:
            found = guard.read(timer)
        else:
            found = guard.noted(timer, held.get(attempt.instance_id))
        if found is not None and not guard.holds(timer, found):
            guard.arm(timer)

    def _disarm(self, attempt: Attempt) -> None:
        cloud = self._cloud_of(attempt.provider)
        if trouble := disarm_all(cloud, attempt, self._journal, self._clock):
            log.error("a guard of %s is left over: %s", attempt.label, trouble)
