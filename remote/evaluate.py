"""Evaluates a checkpoint: python -m remote.evaluate CHECKPOINT [key=value ...]  (or under torchrun)

CHECKPOINT is what `load_checkpoint` takes: a run's directory (its newest), a `step_N` in it, or a
file of upstream's.  The settings are those the checkpoint was trained with, then the overrides; a
file of upstream's has none, so give `arch=...`, its settings and `data_paths=[...]`.

Writes evaluator_ARC_step_N/submission.json and evaluation_step_N.json beside the checkpoint, or
where `checkpoint_path=` says, and prints pass@K.  Exits 1 if an evaluator failed.
"""

import json
import logging
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch

from remote import checkpoint, evaluators, evidence, signals
from remote.config import PretrainConfig, load_config, saved_settings
from remote.dataset.sets import open_splits
from remote.dataset.split import DatasetError
from remote.evaluation import evaluate
from remote.evidence import Watchdog
from remote.files import write_json
from remote.machine import look, require_kernels
from remote.memory import OutOfMemory
from remote.overrides import ConfigError, parse_word
from remote.place import require_a_place
from remote.process import end_with
from remote.ranks import Ranks, joined
from remote.training import Training

log = logging.getLogger(__name__)
UPSTREAM_NAME = re.compile(r"step_(\d+)(\.pt)?")
CONFIG = "config.json"


def main(argv: list[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if words else 2
    signals.show_stacks_when_asked()
    level = logging.INFO if os.environ.get("RANK", "0") == "0" else logging.WARNING
    logging.basicConfig(level=level, format="%(message)s", stream=sys.stdout)
    machine = look(torch.device("cpu"))
    try:
        config = _config(words[0], words[1:])
        with joined(config.device) as ranks:
            machine = look(ranks.device)
            require_kernels(machine)
            require_a_place(config.checkpoint_path, ranks)
            with Watchdog(60 * config.hang_minutes).watching() as watchdog:
                metrics = _evaluate(config, ranks, watchdog)
    except (ConfigError, DatasetError, checkpoint.CheckpointError) as error:
        print(f"evaluate: {error}", file=sys.stderr)
        return 2
    except OutOfMemory as error:
        print(f"evaluate: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"evaluate: {evidence.explain(error, machine) or error}", file=sys.stderr)
        return 1
    except Exception as error:
        if said := evidence.explain(error, machine):
            print(f"evaluate: {said}", file=sys.stderr)
        raise
    return int(any(name.endswith("/failed") for name in metrics))


def _config(wanted: str, overrides: list[str]) -> PretrainConfig:
    given = dict(map(parse_word, overrides))
    path = checkpoint.find(wanted, Path(given.get("checkpoint_path", wanted)))
    saved: dict[str, Any] = {}
    if path.is_dir():
        saved = _saved_settings(path / CONFIG)
    else:
        log.info("%s has no settings: those that are not given have their defaults", path)
    config = load_config(overrides, saved)
    config.load_checkpoint = str(path)
    config.checkpoint_path = given.get("checkpoint_path", str(path.parent))
    return config


def _saved_settings(path: Path) -> dict[str, Any]:
    try:
        return saved_settings(json.loads(path.read_text()), path)
    except (OSError, ValueError) as error:
        raise checkpoint.CheckpointError(f"{path} cannot be read: {error}") from error


def _evaluate(config: PretrainConfig, ranks: Ranks, watchdog: Watchdog) -> dict[str, float | str]:
    began_s = time.monotonic()
    # Each batch is shared evenly; a few more rows change no result.
    config.global_batch_size += -config.global_batch_size % ranks.world_size
    known = open_splits(config.train_paths, "train")
    split = open_splits(config.test_paths, "test", trained_on=config.train_paths)
    made = evaluators.make(config.evaluators, config.test_paths)
    training = Training(config, known, ranks, schedule_steps=1)
    votes = checkpoint.load(training, config, ranks, to_train=False)
    for evaluator in made:
        if ranks.first and evaluator.remembers and evaluator.name in votes:
            evaluator.restore(votes[evaluator.name])
    if named := UPSTREAM_NAME.fullmatch(Path(config.load_checkpoint).name):
        training.step = int(named[1])

    def should_stop() -> bool:
        watchdog.beat("evaluating a batch")
        return False

    metrics = evaluate(training, config, split, made, ranks, should_stop)
    if ranks.first:
        metrics["eval_s"] = time.monotonic() - began_s
        write_json(Path(config.checkpoint_path) / f"evaluation_step_{training.step}.json", metrics)
        for name, value in metrics.items():
            print(f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}")
    return metrics


if __name__ == "__main__":
    end_with(main)
