"""How long a training will still take: by its steps, and by what comes between them.

Evaluations and checkpoints take no steps, and a metrics file says of them at most that they have
happened.  What they cost is the gap between two reports of steps, less what those steps take; how
many are to come follows from the steps at which they came so far.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from gpurun.engine.watch.said import number

RECENT_S = 600.0  # what is longer ago says little of today's speed
GAP = "gap"  # a pause that nobody has announced
GAP_TIMES, GAP_S = 5, 30.0
MOST_KINDS, LONGEST_KIND = 8, 50


@dataclass(frozen=True, slots=True)
class _Mark:
    """Steps done, by one clock: that of the training itself, if it tells its time."""

    its_own: bool
    at_s: float
    step: float


@dataclass(slots=True)
class _Pauses:
    """Those of one kind."""

    count: int = 0
    seconds: float = 0.0
    first_step: float = 0.0
    last_step: float = 0.0

    def add(self, step: float, seconds: float) -> None:
        self.first_step = step if self.count == 0 else self.first_step
        self.last_step = step
        self.count += 1
        self.seconds += seconds

    def left_s(self, began_step: float, total_steps: float, *, announced: bool) -> float:
        """One that came once, by its own word, comes again after as many steps."""
        if self.count > 1:
            every = (self.last_step - self.first_step) / (self.count - 1)
        else:
            every = self.last_step - began_step if announced else 0.0
        if every < 1:
            return 0.0
        to_come = math.floor((total_steps - self.last_step) / every + 1e-6)
        return max(0, to_come) * self.seconds / self.count


class Pace:
    """`kept` is what another watcher of the same training has kept."""

    def __init__(self, kept: object = None) -> None:
        self._steps = self._seconds = 0.0
        self._began_step: float | None = None  # where it was first heard
        self._pauses: dict[str, _Pauses] = {}
        self._mark: _Mark | None = None  # up to here it is counted
        self._new: _Mark | None = None  # what was heard last; more may come of the same instant
        self._event: str | None = None  # what was announced since the mark
        self._event_at_s = 0.0
        if isinstance(kept, Mapping):
            self._restore(kept)

    def hear(self, line: Mapping[str, Any], now: datetime) -> None:
        """One line of metrics, in their order."""
        own_s, step = number(line.get("elapsed_s")), number(line.get("step"))
        at_s = now.timestamp() if own_s is None else float(own_s)
        event = line.get("event")
        if isinstance(event, str) and event != "step":
            self._count()
            self._event, self._event_at_s = event[:LONGEST_KIND], at_s
        elif step is not None:
            mark = _Mark(own_s is not None, at_s, float(step))
            last = self._new or self._mark
            if last is not None and not _follows(mark, last):
                self._mark = self._new = self._event = None
            if self._new is not None and mark.at_s > self._new.at_s:
                self._count()
            self._new = mark

    def left_s(self, step: float, total_steps: float, it_per_s: float | None) -> float | None:
        """Until it has done all its steps, with the evaluations and checkpoints among them.

        `it_per_s` is what it says itself, for as long as nothing was measured.
        """
        rate = self._rate() or it_per_s
        if rate is None or rate <= 0:
            return None
        pauses_s = sum(
            kind.left_s(self._began_step or 0.0, total_steps, announced=name != GAP)
            for name, kind in self._pauses.items()
        )
        return max(0, total_steps - step) / rate + max(0.0, pauses_s - self._paused_s())

    def kept(self) -> dict[str, Any]:
        return {
            "steps": round(self._steps, 3),
            "seconds": round(self._seconds, 3),
            "began_step": self._began_step,
            "pauses": {name: asdict(kind) for name, kind in self._pauses.items()},
            "mark": asdict(self._mark) if self._mark else None,
            "new": asdict(self._new) if self._new else None,
            "event": self._event,
            "event_at_s": self._event_at_s,
        }

    def _rate(self) -> float | None:
        return self._steps / self._seconds if self._seconds > 0 and self._steps > 0 else None

    def _paused_s(self) -> float:
        """How long the pause of this moment lasts already, as far as it was announced."""
        if self._mark is None or self._event is None or self._new is not None:
            return 0.0
        return max(0.0, self._event_at_s - self._mark.at_s)

    def _count(self) -> None:
        """The steps up to what was heard last, and what came between."""
        mark, new, event = self._mark, self._new, self._event
        if new is None:
            return
        if mark is not None:
            gap_s, steps, rate = new.at_s - mark.at_s, new.step - mark.step, self._rate()
            if self._began_step is None:  # its first report is of as many steps as the next one
                self._began_step = max(0.0, mark.step - steps)
            steps_s = steps / rate if rate else None
            paused_s = 0.0
            if event is not None:
                paused_s = self._event_at_s - mark.at_s if steps_s is None else gap_s - steps_s
            elif steps_s is not None and gap_s > max(GAP_TIMES * steps_s, steps_s + GAP_S):
                event, paused_s = GAP, gap_s - steps_s
            paused_s = min(max(0.0, paused_s), gap_s)
            if event is not None and (event in self._pauses or len(self._pauses) < MOST_KINDS):
                self._pauses.setdefault(event, _Pauses()).add(mark.step, paused_s)
            self._learn(steps, gap_s - paused_s)
        self._mark, self._new, self._event = new, None, None

    def _learn(self, steps: float, seconds: float) -> None:
        fading = math.exp(-seconds / RECENT_S)
        self._steps = self._steps * fading + steps
        self._seconds = self._seconds * fading + seconds

    def _restore(self, kept: Mapping[str, Any]) -> None:
        """Nonsense that was kept is as nothing."""
        self._steps, self._seconds = _size(kept.get("steps")), _size(kept.get("seconds"))
        began_step = kept.get("began_step")
        self._began_step = None if began_step is None else _size(began_step)
        pauses = kept.get("pauses")
        for name, kind in list(pauses.items())[:MOST_KINDS] if isinstance(pauses, dict) else ():
            if isinstance(kind, dict) and (count := int(_size(kind.get("count")))):
                rest = (_size(kind.get(key)) for key in ("seconds", "first_step", "last_step"))
                self._pauses[str(name)[:LONGEST_KIND]] = _Pauses(count, *rest)
        self._mark, self._new = _mark_of(kept.get("mark")), _mark_of(kept.get("new"))
        if self._mark and self._new and not _follows(self._new, self._mark):
            self._mark = self._new = None
        event = kept.get("event")
        self._event = event[:LONGEST_KIND] if isinstance(event, str) else None
        self._event_at_s = _size(kept.get("event_at_s"))


def _follows(mark: _Mark, last: _Mark) -> bool:
    """Else it began anew, or tells its time by another clock."""
    return mark.its_own == last.its_own and mark.at_s >= last.at_s and mark.step >= last.step


def _mark_of(kept: object) -> _Mark | None:
    if not isinstance(kept, dict):
        return None
    return _Mark(kept.get("its_own") is True, _size(kept.get("at_s")), _size(kept.get("step")))


def _size(value: object) -> float:
    figure = number(value)
    return float(figure) if figure is not None and figure > 0 else 0.0
