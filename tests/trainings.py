"""Trainings in a folder of this machine, launched and watched as the engine does it."""

import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpurun.clock import Clock, Deadline, SystemClock
from gpurun.engine import detached
from gpurun.engine.watch import Judged, Watcher, judge
from gpurun.engine.watch.watcher import Done, Failed, Outcome
from gpurun.recipe import Recipe
from gpurun.shell.local import LocalShell

PATH = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
MARK = "gpurun-test-training"


def recipe(**changes: Any) -> Recipe:
    """A recipe without GPUs whose metrics are out/metrics.jsonl; `changes` replace whole parts."""
    parts: dict[str, Any] = {
        "name": "tiny",
        "need": {"gpu": "none"},
        "budget": {"max_usd_per_hour": "10", "max_usd": "10", "run_minutes": "5"},
        "setup": {"device": "cpu"},
        "train": {"run": "true"},
        "watch": {"metrics": "out/metrics.jsonl", "hang_minutes": "0.05"},
        "collect": ["out"],
    }
    return Recipe.from_dict(parts | changes)


class Training:
    """One training in `root`, and its watcher."""

    def __init__(self, root: Path, recipe: Recipe, clock: Clock | None = None) -> None:
        self.root = root
        self.recipe = recipe
        (root / ".gpurun").mkdir(parents=True, exist_ok=True)
        (root / "bin").mkdir(exist_ok=True)
        env = {"PATH": f"{root}/bin:{PATH}", "GPURUN_LABEL": f"{MARK}-{root}", "HOME": str(root)}
        self.shell = LocalShell(root, env=env | {"OMP_NUM_THREADS": "1"})
        self.log = root / "copy-of-train.log"
        self.clock = clock or SystemClock()
        self.watcher = self.another_watcher({})

    def another_watcher(self, kept: Mapping[str, Any]) -> Watcher:
        kept = json.loads(json.dumps(kept))
        return Watcher(self.recipe, self.shell, self.clock, self.log, kept)

    def launch(self, command: str) -> "Training":
        result = self.shell.run(detached.launch_text("train", command), timeout_s=20)
        assert result.ok, result.output
        return self

    def shim(self, name: str, text: str) -> None:
        """A command of the box, as a shell script."""
        path = self.root / "bin" / name
        path.with_suffix(".new").write_text(f"#!/bin/sh\n{text}\n")
        path.with_suffix(".new").chmod(0o755)
        path.with_suffix(".new").replace(path)

    def python(self, text: str, *arguments: str) -> "Training":
        """Launch a Python program; with arguments they come before it, as of torchrun."""
        (self.root / "train.py").write_text(text)
        return self.launch(" ".join([sys.executable, *arguments, "train.py"]))

    def until_step(self, within_s: float = 90) -> "Training":
        """Wait for its first metrics, and watch it from there: importing torch is no hang."""
        deadline = Deadline(within_s)
        while not (self.root / "out" / "metrics.jsonl").exists():
            assert not deadline.passed(), (self.root / "logs" / "train.log").read_text()
        self.watcher = self.another_watcher({})
        return self

    def until_end(self, within_s: float = 60) -> Outcome:
        deadline = Deadline(within_s)
        while not deadline.passed():
            if isinstance(outcome := self.watcher.step(), Done | Failed):
                return outcome
        raise AssertionError(f"no end within {within_s} s; its log:\n{self.log.read_text()}")

    def judged(self, within_s: float = 60, evidence_s: float = 30) -> Judged:
        failed = self.until_end(within_s)
        assert isinstance(failed, Failed), failed
        return judge(
            self.watcher,
            failed,
            self.shell,
            clock=self.clock,
            into=self.root / "evidence",
            within_s=evidence_s,
            log=self.log,
        )

    def close(self) -> None:
        """End all that bears this training's mark."""
        mark = f"{MARK}-{self.root}".encode()
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in environ.read_bytes().split(b"GPURUN_LABEL=")[-1].split(b"\0")[:1]:
                    os.kill(int(environ.parent.name), signal.SIGKILL)
