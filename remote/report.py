"""What a run says: lines on stdout, `metrics.jsonl` beside the checkpoints, wandb if asked for."""

import contextlib
import json
import logging
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from remote import history
from remote.config import PretrainConfig, to_dict
from remote.dataset.grids import SEQ_LEN
from remote.speed import mfu, peak_of
from remote.wandb_mirror import FAREWELL_S

log = logging.getLogger(__name__)
ON = ("1", "true", "yes")
GIB = 2**30


class Report:
    """Of the first rank; another rank's `Report` says nothing."""

    def __init__(
        self,
        config: PretrainConfig,
        total_steps: int,
        *,
        speaks: bool,
        from_step: int = 0,
        parameters: int = 0,
    ) -> None:
        """`from_step` is the checkpoint's that a run goes on from; 0: it begins."""
        self._parameters = parameters
        self._config, self._total_steps, self._speaks = config, total_steps, speaks
        self._file = None
        self._wandb = None
        self._bar = None
        self._started_s = self._last_s = time.monotonic()
        self._last_step: int | None = None
        self._trained_s = 0.0
        self._trained_steps = 0
        self._peak = _peak(config)
        if speaks:
            path = Path(config.checkpoint_path) / "metrics.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            if from_step:
                history.go_on_from(path, from_step)
            elif path.exists():
                _set_aside(path)
            self._file = path.open("ab", buffering=0)
            self._wandb = Wandb(config, path) if wandb_is_wanted() else None
            self._bar = _bar(total_steps)

    def begin(self, step: int) -> None:
        """Training starts or goes on after something that is not training."""
        self._last_s, self._last_step = time.monotonic(), step

    def step(self, step: int, lr: float, metrics: dict[str, float]) -> None:
        now_s = time.monotonic()
        steps, seconds = step - self._last_step, now_s - self._last_s
        self._last_s, self._last_step = now_s, step
        self._trained_s += seconds
        self._trained_steps += steps
        it_per_s = steps / max(seconds, 1e-9)
        left_s = max(self._total_steps - step, 0) * self._trained_s / max(self._trained_steps, 1)
        line = {
            "event": "step",
            "step": step,
            "total_steps": self._total_steps,
            "loss": metrics["lm_loss"],
            "lr": lr,
            "it_per_s": it_per_s,
            "samples_per_s": it_per_s * self._config.global_batch_size,
            "mfu": mfu(self._config, SEQ_LEN, it_per_s, self._peak) if self._peak else None,
            "memory_gib": _memory_gib(),
            "elapsed_s": now_s - self._started_s,
        }
        line |= {f"train/{name}": value for name, value in {"lr": lr, **metrics}.items()}
        line["num_params"] = self._parameters
        self._write(line)
        said = f"loss {line['loss']:.4f} lr {lr:.2e} {line['samples_per_s']:.1f} samples/s"
        if self._peak:
            said += f" MFU {line['mfu']:.1%}"
        if self._bar is not None:
            self._bar.set_postfix_str(said, refresh=False)
            self._bar.update(step - self._bar.n)
            if sys.stdout.isatty():
                return
        self._say(
            f"step {step}/{self._total_steps} {said} {it_per_s:.2f} it/s eta {_clock(left_s)}"
        )

    def event(self, name: str, step: int, values: dict[str, Any] | None = None) -> None:
        elapsed_s = time.monotonic() - self._started_s
        self._write({"event": name, "step": step, "elapsed_s": elapsed_s, **(values or {})})
        shown = " ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in (values or {}).items()
        )
        self._say(f"{name} at step {step} {shown}".rstrip())

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._file is not None:
            self._file.close()
        if self._wandb is not None:
            self._wandb.close()

    def _write(self, line: dict[str, Any]) -> None:
        """Whole or not at all; a disk without room must not end a training."""
        if self._file is None:
            return
        data, size = json.dumps(line).encode() + b"\n", self._file.tell()
        try:
            complete = self._file.write(data) == len(data)
            problem = "the disk is full"
        except OSError as error:
            complete, problem = False, str(error)
        if not complete:
            self._file.truncate(size)
            log.warning("a line is missing in %s: %s", self._file.name, problem)

    def _say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(text)
        elif self._speaks:
            print(text, flush=True)


def wandb_is_wanted() -> bool:
    """As its own variables say; without any, if there is a key."""
    if os.environ.get("WANDB_DISABLED", "").lower() in ON:
        return False
    mode = os.environ.get("WANDB_MODE", "")
    return mode in ("online", "offline") if mode else bool(os.environ.get("WANDB_API_KEY"))


class Wandb:
    """The process that copies metrics.jsonl to wandb, from the file's present end on."""

    def __init__(self, config: PretrainConfig, metrics: Path) -> None:
        settings = to_dict(config)
        run = {"project": config.project_name, "name": config.run_name, "config": settings}
        job = {"metrics": str(metrics), "from_byte": metrics.stat().st_size, "run": run}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "remote.wandb_mirror"], stdin=subprocess.PIPE, text=True
        )
        with contextlib.suppress(OSError):  # it is gone already, and has said why
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(FAREWELL_S + 1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode:
            log.warning("wandb did not finish within %d s; metrics.jsonl has all of it", FAREWELL_S)


def _bar(total_steps: int) -> Any:
    """On a terminal, if tqdm is installed; lines say the same."""
    if not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total_steps, unit="step", dynamic_ncols=True)


def _peak(config: PretrainConfig) -> float | None:
    """Of all ranks together."""
    if config.device == "cpu" or not torch.cuda.is_available():
        return None
    peak = peak_of(torch.device("cuda", torch.cuda.current_device()))
    return peak * int(os.environ.get("WORLD_SIZE", 1)) if peak else None


def _memory_gib() -> float:
    """The most so far: of this process's GPU, or of the process where there is none."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_reserved() / GIB
    return _most_resident_bytes() / GIB


def _most_resident_bytes() -> int:
    # Linux begins `ru_maxrss` with what the parent had, which may be a torchrun of its own size.
    with contextlib.suppress(OSError, TypeError):
        return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _set_aside(path: Path) -> None:
    """Metrics of an earlier run in the same place are kept under a number."""
    number = 1
    while (kept := path.with_name(f"metrics.{number}.jsonl")).exists():
        number += 1
    path.rename(kept)


def _clock(seconds: float) -> str:
    whole = max(int(seconds), 0)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
