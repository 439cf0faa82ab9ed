"""A case measured on one side, this project's or upstream's, in a process of its own."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.train import job as jobs
from benchmarks.train.cases import Case
from benchmarks.train.data import Dataset
from benchmarks.train.job import Found, Job

ROOT = Path(__file__).resolve().parents[2]
WORKERS = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Upstream:
    """A checkout of TinyRecursiveModels, and an interpreter that has what it needs."""

    checkout: Path
    python: str


def measured(
    case: Case, data: Dataset, device: str, place: Path, upstream: Upstream | None = None
) -> Found:
    """Of this project, or of upstream where it is given, which needs this project's run before it:
    weights and batches are those that it left in `place`.  SystemExit if the process fails."""
    shared = place / "shared"
    shared.mkdir(parents=True, exist_ok=True)
    asked, answer = shared / "job.json", shared / "found.json"
    own = {"cuda_graph": "True"} if case.recorded and upstream is None else {}
    job = Job(
        settings=case.settings | own,
        data=str(data.path),
        device=device,
        warmup=case.warmup,
        steps=case.steps,
        evaluates=case.evaluates,
        shared=str(shared),
    )
    jobs.write(asked, job)
    environment = dict(os.environ) | {"WANDB_MODE": "disabled", "PYTHONPATH": str(ROOT)}
    if device == "cpu":
        environment["OMP_NUM_THREADS"] = "1"
    environment.pop("DISABLE_COMPILE", None)
    if not case.compiled or (device == "cpu" and upstream is not None):
        environment["DISABLE_COMPILE"] = "1"
    command = [sys.executable, "-m", "benchmarks.train.ours"]
    cwd = ROOT
    if upstream is not None:
        cwd = _copied(upstream.checkout, place / "upstream", device)
        command = [upstream.python, "upstream.py"]
        environment["PYTHONPATH"] = ""
    done = subprocess.run(
        [*command, str(asked), str(answer)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return jobs.read_found(answer)


def _copied(upstream: Path, copy: Path, device: str) -> Path:
    """Upstream's code is never written to."""
    shutil.rmtree(copy, ignore_errors=True)
    code = shutil.ignore_patterns(".git", "kaggle", "data", "checkpoints")
    shutil.copytree(upstream, copy, ignore=code)
    for worker in ("upstream.py", "job.py"):
        shutil.copy(WORKERS / worker, copy)
    (copy / "shared").mkdir(exist_ok=True)
    if device == "cpu":
        trainer = copy / "pretrain.py"
        text = trainer.read_text().replace('"cuda"', '"cpu"').replace(".cuda()", ".cpu()")
        trainer.write_text(text)
    return copy
