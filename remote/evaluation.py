"""One evaluation: every test example, all ACT steps, with the averaged weights if there are any."""

import contextlib
import logging
import math
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from remote.config import PretrainConfig
from remote.dataset.batches import Batch, evaluation_batches, iterate_test
from remote.dataset.prefetch import prefetched
from remote.dataset.split import Split
from remote.evaluators.arc import ARC
from remote.memory import out_of_memory, try_answer
from remote.ranks import Ranks
from remote.training import Training, batch_to_device, means

log = logging.getLogger(__name__)
ROWS_IN_CACHE = 8  # of a CPU
SECONDS_BETWEEN_LINES = 30  # an evaluation can take many minutes, and must not look stuck


class Stopped(Exception):
    """The evaluation was asked to end; nothing of it counts."""


def evaluate(
    training: Training,
    config: PretrainConfig,
    split: Split,
    evaluators: list[ARC],
    ranks: Ranks,
    should_stop: Callable[[], bool],
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, float | str]:
    """Called by all ranks; the first one gets all metrics.  A failing evaluator is reported.

    `progress` is told at first, and now and then, on the first rank, how many batches are done and
    of how many.
    """
    averaged = training.ema.applied() if training.ema else contextlib.nullcontext()
    failures: dict[int, str] = {}
    sums: dict[str, float] = {}
    kept: list[dict[str, np.ndarray]] = []
    for evaluator in evaluators:
        evaluator.begin()
    wanted = {"preds", "q_halt_logits", *config.eval_save_outputs}
    total = evaluation_batches(split, batch_size=config.global_batch_size)
    batches = iterate_test(split, batch_size=config.global_batch_size, shard=ranks.shard)
    with averaged, contextlib.closing(prefetched(batches)) as ready:
        training.model.eval()
        said_s = -math.inf
        for number, (batch, examples) in enumerate(ready):
            if ranks.any(flag=should_stop()):
                raise Stopped
            if ranks.first and time.monotonic() - said_s > SECONDS_BETWEEN_LINES:
                said_s = time.monotonic()
                (progress or _say)(number, total)
            if ranks.world_size == 1 and ranks.device.type == "cpu":
                # Elsewhere blanks stay: a compiled model, and ranks that share a puzzle table,
                # want batches of one shape.
                batch = {name: rows[examples >= 0] for name, rows in batch.items()}
                examples = examples[examples >= 0]
            try:
                outputs, metrics = _answer(training, batch, ranks.device, wanted)
            except torch.OutOfMemoryError as error:
                raise out_of_memory(error, training, batch, ranks, try_answer) from error
            for name, value in metrics.items():
                sums[name] = sums.get(name, 0.0) + value
            for index, evaluator in enumerate(evaluators):
                if index not in failures:
                    with _noted(failures, index):
                        evaluator.update(
                            examples=examples,
                            puzzle_identifiers=batch["puzzle_identifiers"],
                            inputs=batch["inputs"],
                            preds=outputs["preds"],
                            q_halt_logits=outputs["q_halt_logits"],
                        )
            if config.eval_save_outputs:
                kept.append(_selected(config.eval_save_outputs, batch, outputs, examples))
    if kept:
        _write_outputs(config, training.step, ranks, kept)
    return _results(training, config, split, evaluators, ranks, sums, failures)


def _answer(
    training: Training, batch: Batch, device: torch.device, names: set[str]
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Outputs as plain arrays, and sums over rows."""
    rows = len(batch["inputs"])
    each = ROWS_IN_CACHE if device.type == "cpu" else rows
    parts = [
        training.model.answer(
            batch_to_device({n: all_rows[at : at + each] for n, all_rows in batch.items()}, device)
        )
        for at in range(0, rows, each)
    ]
    plain = {
        name: np.concatenate([outputs[name].float().cpu().numpy() for _, outputs in parts])
        for name in parts[0][1]
        if name in names
    }
    sums = {name: sum(metrics[name].item() for metrics, _ in parts) for name in parts[0][0]}
    return plain, sums


def _results(
    training: Training,
    config: PretrainConfig,
    split: Split,
    evaluators: list[ARC],
    ranks: Ranks,
    sums: dict[str, float],
    failures: dict[int, str],
) -> dict[str, float | str]:
    """Outside inference mode, and with plain values only: gloo's threads write what they gather."""
    gathered = ranks.gather(sums)
    totals = {name: sum(part[name] for part in gathered) for name in sums}
    metrics: dict[str, float | str] = {
        f"all/{name}": value for name, value in means(totals, len(split.inputs)).items()
    }
    for index, evaluator in enumerate(evaluators):
        votes = None
        if index not in failures:
            with _noted(failures, index):
                votes = evaluator.votes()
        # A rank that failed still takes part in the gathering, or the others would wait for it.
        states = ranks.gather((failures.get(index), votes))
        broken = next((failure for failure, _ in states if failure), None)
        if broken is None and ranks.first:
            name = f"evaluator_{evaluator.name}_step_{training.step}"
            with _noted(failures, index):
                parts = [part for _, part in states]
                metrics |= evaluator.result(parts, Path(config.checkpoint_path) / name)
        if failure := broken or failures.get(index):
            metrics[f"{evaluator.name}/failed"] = failure
    return metrics


def _say(done: int, total: int) -> None:
    log.info("evaluating: %d of %d batches", done, total)


@contextlib.contextmanager
def _noted(failures: dict[int, str], index: int):
    """An evaluator must never end a run that costs dollars an hour: what it raises is reported."""
    try:
        yield
    except Exception as error:
        log.error("an evaluator failed, training goes on:\n%s", traceback.format_exc())
        failures[index] = f"{type(error).__name__}: {error}"


def _selected(
    names: list[str], batch: Batch, outputs: dict[str, np.ndarray], examples: np.ndarray
) -> dict[str, np.ndarray]:
    available = {**batch, **outputs, "examples": examples}
    return {name: available[name] for name in names if name in available}


def _write_outputs(
    config: PretrainConfig, step: int, ranks: Ranks, kept: list[dict[str, np.ndarray]]
) -> None:
    directory = Path(config.checkpoint_path) / "eval_outputs"
    directory.mkdir(parents=True, exist_ok=True)
    merged = {name: np.concatenate([part[name] for part in kept]) for name in kept[0]}
    np.savez(directory / f"step_{step}_rank_{ranks.rank}.npz", **merged)
