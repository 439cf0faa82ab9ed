"""Another machine beside ours: one with the same account, or one with a copy of our directory.

The first has a journal of its own, buys, and ends all that it has.  The second has ours, as it was
while the run trained (protocol W7): nothing is bought or ended from there.  At provider `local` an
account is a directory of boxes, so both look into ours.
"""

import shutil
import sqlite3
import subprocess
from contextlib import closing, suppress
from pathlib import Path
from signal import SIGCONT

from tests.chaos.inside import MACHINE
from tests.chaos.machine import Machine, placed, said
from tests.chaos.schedule import COPIED, SECOND_MACHINE, Schedule
from tests.clouds.serve import Cloud

TYPED = {
    SECOND_MACHINE: (("status",), ("orphans",), ("kill", "--all", "--yes")),
    COPIED: (("keeper", "run"), ("status",), ("orphans",), ("resume", "RUN"), ("up",)),
}
LEFT_BEHIND = ("boxes", "fuses", "salvage", "*.lock", "gpurun.db*")


class Beside:
    """`step` is called again and again; it never waits."""

    def __init__(
        self, schedule: Schedule, root: Path, original: Machine, cloud: Cloud | None
    ) -> None:
        self.machine = placed(root / "beside", root / "beside-chaos")
        (self.machine.folder / MACHINE).write_text("another machine")
        if cloud is not None:
            self.machine.home.open_account(cloud)
        self._schedule = schedule
        self._original = original
        self._left = list(TYPED[schedule.beside])
        self._begun = False
        self.commands: list[subprocess.Popen[str]] = []

    def step(self) -> None:
        if self._schedule.beside == SECOND_MACHINE and not self.commands:
            self._rent()
        if not self._begun and self._original.has_trained():
            self._begun = True
            if self._schedule.beside == COPIED:
                self._copy()
        if self._begun and self._left and all(each.poll() is not None for each in self.commands):
            self._type(self._left.pop(0))

    @property
    def is_copy(self) -> bool:
        return self._schedule.beside == COPIED

    def over(self) -> bool:
        """A copy never hears what has become of the run."""
        done = self._begun and not self._left
        typed = all(each.poll() is not None for each in self.commands)
        return done and typed and (self.is_copy or self.machine.over())

    def said(self) -> str:
        return "\n".join(map(said, self.commands))

    def close(self) -> None:
        self.machine.home.signal_all(SIGCONT)
        self.machine.home.close()

    def _rent(self) -> None:
        """After ours: of two that plan with one offer the second refuses its new price (R2)."""
        if self._original.has_rented():
            self.machine.home.places.root.mkdir(mode=0o700)
            self._share_boxes()
            self.commands.append(self.machine.up(self._schedule))

    def _type(self, words: tuple[str, ...]) -> None:
        machine = self.machine
        command = machine.up(self._schedule) if words == ("up",) else machine.command(words)
        if command is not None:
            self.commands.append(command)

    def _copy(self) -> None:
        """All but the locks and the boxes; of a database that is in use, as SQLite copies it."""
        ours, copy = self._original.home.places, self.machine.home.places
        ignored = shutil.ignore_patterns(*LEFT_BEHIND)
        with suppress(shutil.Error):  # what vanished meanwhile
            shutil.copytree(ours.root, copy.root, ignore=ignored)
        copy.root.chmod(0o700)
        self._share_boxes()
        with (
            closing(sqlite3.connect(f"file:{ours.database}?mode=ro", uri=True)) as journal,
            closing(sqlite3.connect(copy.database)) as into,
        ):
            journal.backup(into)

    def _share_boxes(self) -> None:
        boxes = self._original.home.places.boxes
        boxes.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.machine.home.places.boxes.symlink_to(boxes)
