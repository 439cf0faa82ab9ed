"""Machines that turned out bad: which, why, and until when they are not rented again.

A text file in the state directory, one JSON object a line, each written at once, so that processes
need no lock; the last line about a machine counts.  A line that cannot be read avoids nothing: this
memory must never stand between a user and a run.
"""

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from gpurun.clock import Clock

FOR = timedelta(days=7)
FILE = "avoided.jsonl"


@dataclass(frozen=True, slots=True)
class Bad:
    """One machine, as `Offer.machine` names it, and why it is avoided until then."""

    provider: str
    machine: str
    why: str
    until: datetime


class Avoided:
    """The memory of one state directory."""

    def __init__(self, state_dir: Path, clock: Clock) -> None:
        self._path = state_dir / FILE
        self._clock = clock

    def remember(self, provider: str, machine: str, why: str, span: timedelta = FOR) -> None:
        """Where it cannot be written it is not kept: the next run may meet the machine again."""
        if machine:
            self._append(Bad(provider, machine, " ".join(why.split()), self._clock.now() + span))

    def forget(self, provider: str, machine: str) -> None:
        self._append(Bad(provider, machine, "forgotten", self._clock.now()))

    def all(self) -> list[Bad]:
        """Those whose time is not over, the latest remembered last."""
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
        last: dict[tuple[str, str], Bad] = {}
        for bad in filter(None, map(_read, lines)):
            last.pop((bad.provider, bad.machine), None)
            last[bad.provider, bad.machine] = bad
        return [bad for bad in last.values() if bad.until > self._clock.now()]

    def machines(self, provider: str) -> frozenset[str]:
        return frozenset(bad.machine for bad in self.all() if bad.provider == provider)

    def _append(self, bad: Bad) -> None:
        row = {"provider": bad.provider, "machine": bad.machine, "why": bad.why}
        line = json.dumps(row | {"until": bad.until.isoformat()}) + "\n"
        with suppress(OSError):
            to = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(to, line.encode())
            finally:
                os.close(to)


def _read(line: str) -> Bad | None:
    try:
        row = json.loads(line)
        until = datetime.fromisoformat(row["until"])
        bad = Bad(str(row["provider"]), str(row["machine"]), str(row["why"]), until)
    except (ValueError, KeyError, TypeError):
        return None
    return bad if until.tzinfo else None
