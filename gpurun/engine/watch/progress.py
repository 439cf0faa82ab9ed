"""How far a training is, how fast it goes, and when it last went on."""

from collections import deque
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from gpurun.engine.watch.pace import Pace
from gpurun.engine.watch.said import is_broken, number

LONGEST_S = 90 * 86400.0
SPEED_OVER_S = 120.0
MOST_NAMES, LONGEST_NAME = 200, 100
NAMES = ("step", "total_steps", "it_per_s", "samples_per_s", "loss")
SAME_CHECKPOINT_S = 5.0  # two readings of one file's age differ by the seconds they are rounded to


class Progress:
    """What a training has said, and the hang's clock: the last sign that it goes on.

    Signs are another step with a finite loss, an event (a checkpoint, an evaluation) and a new
    checkpoint file.  Steps whose loss is NaN or infinite are none.
    """

    def __init__(self, now: datetime, kept: Mapping[str, Any] | None = None) -> None:
        """`kept` is what another process has kept: its clock goes on here."""
        kept = kept or {}
        self.moved_at = min(_instant(kept.get("moved_at")) or now, now)
        self.broken_since = _instant(kept.get("broken_since"))
        self.checkpoint_at = _instant(kept.get("checkpoint_at"))
        said = kept.get("said")
        self.said: dict[str, int | float] = {}
        self._learn(said if isinstance(said, dict) else {})
        self._steps: deque[tuple[datetime, float]] = deque()
        self._pace = Pace(kept.get("pace"))

    def hear(self, line: Mapping[str, Any], now: datetime) -> None:
        """One line of metrics."""
        step, before = number(line.get("step")), self.said.get("step")
        if "loss" in line:
            if is_broken(line["loss"]):
                self.broken_since = self.broken_since or now
                self.said.pop("loss", None)  # the newest loss is not the last finite one
            else:
                self.broken_since = None
        stepped = step is not None and step != before
        happened = isinstance(line.get("event"), str) and line["event"] != "step"
        if happened or (stepped and self.broken_since is None):
            self.moved_at = now
        self._learn(line)
        self._pace.hear(line, now)
        if stepped and step is not None:
            self._time(now, step)

    def checkpoint(self, at: datetime) -> None:
        """The newest checkpoint file is of this instant."""
        newest = self.checkpoint_at
        if newest is None or at > newest + timedelta(seconds=SAME_CHECKPOINT_S):
            self.checkpoint_at = at
            self.moved_at = max(self.moved_at, at)

    @property
    def it_per_s(self) -> float | None:
        """Steps a second: the training's own word, else over the last two minutes."""
        if (own := self.said.get("it_per_s")) is not None:
            return own
        if len(self._steps) < 2:
            return None
        (began, first), (ended, last) = self._steps[0], self._steps[-1]
        seconds = (ended - began).total_seconds()
        return (last - first) / seconds if seconds >= 1 and last > first else None

    def document(self) -> dict[str, Any]:
        """Its share of the `train` part of `status --json`."""
        shown: dict[str, Any] = {name: self.said.get(name) for name in NAMES}
        step, total, rate = shown["step"], shown["total_steps"], self.it_per_s
        eta_s = None
        if step is not None and total is not None and rate:
            left_s = self._pace.left_s(step, total, rate)
            eta_s = round(left_s, 1) if left_s is not None and left_s <= LONGEST_S else None
        return shown | {
            "it_per_s": rate,
            "eta_s": eta_s,
            "last_checkpoint_at": self.checkpoint_at.isoformat() if self.checkpoint_at else None,
        }

    def kept(self) -> dict[str, Any]:
        """What the next driver of the run goes on from."""
        return {
            "moved_at": self.moved_at.isoformat(),
            "broken_since": self.broken_since.isoformat() if self.broken_since else None,
            "checkpoint_at": self.checkpoint_at.isoformat() if self.checkpoint_at else None,
            "said": self.said,
            "pace": self._pace.kept(),
        }

    def _learn(self, line: Mapping[str, Any]) -> None:
        for name, value in line.items():
            known = name in self.said or len(self.said) < MOST_NAMES
            if (figure := number(value)) is not None and known and len(name) <= LONGEST_NAME:
                self.said[name] = figure

    def _time(self, now: datetime, step: float) -> None:
        if self._steps and step < self._steps[-1][1]:
            self._steps.clear()  # it began anew
        if self._steps and self._steps[-1][0] == now:
            self._steps.pop()
        self._steps.append((now, step))
        while len(self._steps) > 2 and (now - self._steps[1][0]).total_seconds() > SPEED_OVER_S:
            self._steps.popleft()


def _instant(text: object) -> datetime | None:
    try:
        at = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return at if at is not None and at.tzinfo is not None else None
