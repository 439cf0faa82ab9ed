"""A machine of a schedule: its home, what is typed there, and what its journal says."""

import json
import os
import sqlite3
import subprocess
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import inside
from tests.chaos.schedule import Deed, Schedule
from tests.cloudruns.scene import FOUR_H100
from tests.hosts import Hosts

ROOT = Path(__file__).parents[2]
LAUNCHED = "mkdir -p out; touch out/launched; echo 42 > out/result.txt"
TRAININGS = {
    "ends": f"{LAUNCHED}; sleep 1",
    "waits": f"trap 'touch out/told; exit' TERM; {LAUNCHED}; while :; do sleep 0.1; done",
    "ignores": f"trap 'touch out/told' TERM; {LAUNCHED}; while :; do sleep 0.1; done",
    "fails": f"{LAUNCHED}; sleep 0.5; exit 3",
}
USD_PER_HOUR = "3.60"
OVER = ("gone", "refused", "expired", "ghost")
ENDS_OUTSIDE = ("done", "failed", "killed", "deadline")


@dataclass(frozen=True, slots=True)
class Machine:
    """`folder` is where its processes write what they pass, and read what is in store for them."""

    home: Hosts
    folder: Path

    def up(self, schedule: Schedule) -> "subprocess.Popen[str]":
        recipe = self.home.recipe(
            train=TRAININGS[schedule.train],
            setup_minutes=schedule.setup_minutes,
            run_minutes=schedule.run_minutes,
            grace_minutes=schedule.grace_minutes,
        )
        words = ["up", recipe, "--yes", "-d", "--set", f"budget.max_usd={schedule.max_usd}"]
        if schedule.provider != "local":
            words += ["--provider", schedule.provider, *FOUR_H100, "--accept-one-guard"]
        return self.home.start(*words)

    def command(self, words: Sequence[str]) -> "subprocess.Popen[str] | None":
        """RUN stands for the newest run; where there is none, nothing is typed."""
        runs = self.rows("select id from runs order by created_at desc limit 1")
        if "RUN" in words and not runs:
            return None
        return self.home.start(*[str(runs[0][0]) if word == "RUN" else word for word in words])

    def rows(self, query: str) -> list[tuple[object, ...]]:
        return rows(self.home.places.database, query)

    def over(self) -> bool:
        """No run goes on, no attempt may bill, by the journal."""
        runs = self.rows("select state from runs")
        attempts = self.rows("select state from instances")
        return all(state in ENDS_OUTSIDE for [state] in runs) and all(
            state in OVER for [state] in attempts
        )

    def has_rented(self) -> bool:
        """A box of it has an id, or there will be none."""
        made = self.rows("select 1 from instances where instance_id is not null")
        ended = [state for [state] in self.rows("select state from runs") if state in ENDS_OUTSIDE]
        return bool(made or ended)

    def has_trained(self) -> bool:
        """A run is in its training, or was, or never will be."""
        found = self.rows("select phase, state from runs")
        return any(phase == "train" or state in ENDS_OUTSIDE for phase, state in found)


def placed(root: Path, folder: Path, deeds: Sequence[Deed] = ()) -> Machine:
    """A machine with nothing on it yet."""
    home = Hosts(root)
    folder.mkdir(parents=True)
    (folder / "faults.json").write_text("{}")
    stored = [{"who": each.who, "point": each.point, "nth": each.nth} for each in deeds]
    (folder / "deeds.json").write_text(json.dumps(stored))
    home.env |= {
        inside.FOLDER: str(folder),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent / "entry"), str(ROOT)]),
        "GPURUN_LOCAL_USD_PER_HOUR": USD_PER_HOUR,
    }
    return Machine(home, folder)


def rows(database: Path, query: str) -> list[tuple[object, ...]]:
    """What a journal says; nothing where there is none."""
    if not database.exists():
        return []
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as journal:
            return journal.execute(query).fetchall()
    except sqlite3.Error:
        return []


def said(command: "subprocess.Popen[str]") -> str:
    if command.poll() is None:
        return f"{command.args}: goes on"
    return f"{command.args}: {command.returncode} {' '.join(command.communicate())}"
