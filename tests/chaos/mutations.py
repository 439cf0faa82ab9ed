"""Fourteen defects, each a patch in tests/mutations: a chaos that does not see one is blind.

Each is applied to a copy of the tree, where the schedule that looks for it is played; the same
schedule is played here, undamaged, and must be clean.
"""

import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.chaos.playing import play
from tests.chaos.schedule import Deed, Schedule

ROOT = Path(__file__).parents[2]
PATCHES = ROOT / "tests" / "mutations"
COPIED = ("gpurun", "provisioners", "recipes", "remote", "tests", "pyproject.toml")
SIDE_BY_SIDE = 3
TRAIN = 8  # the phase of this number is the training
FOR_LONG_S = 60.0


def _fault(name: str, point: str, times: int = -1, seconds: float = FOR_LONG_S) -> Deed:
    return Deed("fault", "driver", point, seconds=seconds, words=(name,), values={"times": times})


SEEKERS = {
    "remove-the-intent-row": Schedule(
        "local", "waits", (Deed("kill all", "driver", "Cloud.create", seconds=1),)
    ),
    "retry-create": Schedule(
        "local", "ends", (_fault("create_lost", "Runs.event", 1),), run_minutes=1, only="done"
    ),
    "trust-the-answer-to-delete": Schedule(
        "local", "ends", (_fault("destroy_lies", "Attempts.deleting", 2),), run_minutes=1
    ),
    "arm-after-launch": Schedule("local", "waits"),
    "trust-an-empty-list": Schedule(
        "local",
        "ends",
        (
            _fault("destroy_lies", "Runs.collected", seconds=6),
            _fault("list_empty", "Attempts.deleting", seconds=6),
        ),
        run_minutes=1,
    ),
    "ignore-the-run-lock": Schedule(
        "local",
        "ends",
        (Deed("stop", "driver", "BlackBox.append intent", seconds=8),),
        run_minutes=1,
        only="done",
    ),
    "skip-the-account-check": Schedule(
        "local", "ends", (_fault("other_account", "Attempts.deleting", seconds=6),), run_minutes=1
    ),
    "take-a-404-as-gone": Schedule(
        "vast",
        "ends",
        (
            Deed(
                "fault",
                "driver",
                "Attempts.deleting",
                seconds=10,
                words=("auth_404",),
                values={"endpoint": "destroy"},
            ),
        ),
        run_minutes=1,
    ),
    "resend-after-takeover": Schedule(
        "local", "ends", (Deed("kill", "driver", "Cloud.create"),), run_minutes=1
    ),
    "launch-with-a-stale-schedule": Schedule(
        "vast",
        "waits",
        (
            Deed(
                "fault",
                "driver",
                "Timers.arming",
                seconds=30,
                words=("server_error",),
                values={"endpoint": "schedules", "times": 4},
            ),
            Deed("sleep", "driver", "Runs.begin_phase", TRAIN, seconds=66 * 60),
            Deed("gpurun", at_s=90, words=("kill", "RUN", "--yes", "--no-collect")),
        ),
        run_minutes=150,
        max_usd=100,
    ),
    "use-the-wall-clock": Schedule(
        "local",
        "waits",
        (Deed("wall", "driver", "Runs.begin_phase", TRAIN, seconds=32_400),),
        run_minutes=0.15,
    ),
    "reuse-a-counter-as-run-id": Schedule("local", "ends", run_minutes=1, then="restored"),
    "kill-by-prefix": Schedule("local", "ends", run_minutes=1),
    "let-collect-pass-the-end": Schedule(
        "local", "waits", (Deed("stop", "driver", "Runs.show_phase", 2, seconds=30),)
    ),
}


@dataclass(frozen=True, slots=True)
class Found:
    mutation: str
    caught: bool
    by: str


def all_caught(only: str = "") -> bool:
    """Say of each what has caught it; false when one was not."""
    names = [name for name in SEEKERS if only in name]
    with (
        tempfile.TemporaryDirectory(prefix="mutations-") as folder,
        ThreadPoolExecutor(SIDE_BY_SIDE) as pool,
    ):
        sound = pool.map(_sound, names)
        found = []
        for each in pool.map(partial(_sought, folder=Path(folder)), names):
            found.append(each)
            word = "caught" if each.caught else "MISSED"
            told = SEEKERS[each.mutation].told()
            print(f"{word} {each.mutation} by {told}: {each.by}", flush=True)
        troubles = list(filter(None, sound))
    for trouble in troubles:
        print(f"FALSE ALARM {trouble}")
    print(f"mutations={len(found)} caught={sum(each.caught for each in found)}")
    return all(each.caught for each in found) and not troubles


def damaged(name: str, folder: Path) -> Path:
    """A copy of the tree with this defect in it."""
    copy = folder / name
    copy.mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    for part in COPIED:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, copy / part, ignore=ignored)
        else:
            shutil.copy2(source, copy / part)
    patch = PATCHES / f"{name}.patch"
    done = subprocess.run(
        ["git", "apply", "--recount", "-C1", str(patch)], cwd=copy, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise ValueError(f"{patch} does not fit the code any more: {done.stderr}")
    return copy


def _sought(name: str, folder: Path) -> Found:
    copy = damaged(name, folder)
    schedule = copy / "schedule.json"
    schedule.write_text(SEEKERS[name].to_json())
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--replay", str(schedule)],
        cwd=copy,
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    said = [line.strip() for line in lines if line.startswith("  ") and "{" not in line[:3]]
    if not lines or not lines[-1].startswith("schedules=1 "):
        return Found(name, False, f"it could not be played: {done.stderr[-2000:]}")
    return Found(name, done.returncode == 1, "; ".join(said) or lines[-1])


def _sound(name: str) -> str:
    result = play(SEEKERS[name])
    return "" if result.verdict.clean else f"{name}: {result.verdict.found}\n{result.logs}"
