"""What a run says: lines on stdout, `metrics.jsonl` beside the checkpoints, wandb if asked for."""

import json
import logging
import os
import queue
import threading
import time
from pathlib import Path
from typing import Any

from remote.config import PretrainConfig, to_dict

log = logging.getLogger(__name__)
FAREWELL_S = 30


class Report:
    """Of the first rank; another rank's `Report` says nothing."""

    def __init__(self, config: PretrainConfig, total_steps: int, *, speaks: bool) -> None:
        self._config, self._total_steps, self._speaks = config, total_steps, speaks
        self._file = None
        self._wandb = None
        self._started_s = self._last_s = time.monotonic()
        self._last_step: int | None = None
        self._trained_s = 0.0
        self._trained_steps = 0
        if speaks:
            path = Path(config.checkpoint_path) / "metrics.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            if config.load_checkpoint is None and path.exists():
                _set_aside(path)
            self._file = path.open("a", buffering=1)
            self._wandb = Wandb(config) if wandb_is_wanted() else None

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
        left_s = (self._total_steps - step) * self._trained_s / max(self._trained_steps, 1)
        line = {
            "event": "step",
            "step": step,
            "total_steps": self._total_steps,
            "loss": metrics["lm_loss"],
            "lr": lr,
            "it_per_s": it_per_s,
            "samples_per_s": it_per_s * self._config.global_batch_size,
            "elapsed_s": now_s - self._started_s,
        }
        line |= {f"train/{name}": value for name, value in metrics.items()}
        self._write(line)
        self._say(
            f"step {step}/{self._total_steps} loss {metrics['lm_loss']:.4f} lr {lr:.2e}"
            f" {it_per_s:.2f} it/s {line['samples_per_s']:.1f} samples/s eta {_clock(left_s)}"
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
        if self._file is not None:
            self._file.close()
        if self._wandb is not None:
            self._wandb.close()

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
        if self._wandb is not None:
            self._wandb.put(line)

    def _say(self, text: str) -> None:
        if self._speaks:
            print(text, flush=True)


def wandb_is_wanted() -> bool:
    mode = os.environ.get("WANDB_MODE", "")
    if mode in ("online", "offline"):
        return True
    return mode == "" and bool(os.environ.get("WANDB_API_KEY"))


class Wandb:
    """A thread feeds wandb, so that a server which cannot be reached never holds up training."""

    def __init__(self, config: PretrainConfig) -> None:
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, args=(config,), daemon=True)
        self._thread.start()

    def put(self, line: dict[str, Any]) -> None:
        if self._thread.is_alive():
            self._lines.put(line)

    def close(self) -> None:
        self._lines.put(None)
        self._thread.join(FAREWELL_S)
        if self._thread.is_alive():
            log.warning("wandb did not finish within %d s; metrics.jsonl has all of it", FAREWELL_S)

    def _run(self, config: PretrainConfig) -> None:
        try:
            import wandb

            run = wandb.init(
                project=config.project_name, name=config.run_name, config=to_dict(config)
            )
            log.info("wandb: %s", run.url or "offline")
            while (line := self._lines.get()) is not None:
                values = {key: value for key, value in line.items() if key not in ("event", "step")}
                run.log(values, step=line["step"])
            run.finish()
        except Exception as error:  # whatever wandb raises, the run is worth more
            log.warning("wandb is off: %s; metrics.jsonl goes on", error)


def _set_aside(path: Path) -> None:
    """Metrics of an earlier run in the same place are kept under a number."""
    number = 1
    while (kept := path.with_name(f"metrics.{number}.jsonl")).exists():
        number += 1
    path.rename(kept)


def _clock(seconds: float) -> str:
    whole = max(int(seconds), 0)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
