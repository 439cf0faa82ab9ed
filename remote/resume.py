"""What a training run is, as plain data; and back, also onto another number of ranks.

The shared state is the same on all ranks and written once.  Each rank's own state is its rows of
the carry, its part of the puzzle table, its random states, and its metrics since the last report.
"""

import logging
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from remote.config import PretrainConfig, to_dict
from remote.models.act import Carry
from remote.optim.adam_atan2 import MOMENTS
from remote.ranks import Ranks
from remote.training import Sums, Training
from remote.weights import TABLE, CheckpointError, load_into, load_table, read_file

log = logging.getLogger(__name__)
State = dict[str, Any]


def shared_state(training: Training, config: PretrainConfig, ranks: Ranks, votes: State) -> State:
    weights = training.model.state_dict()
    table = weights.pop(TABLE, None)
    return {
        "step": training.step,
        "iteration": training.iteration,
        "batches_done": training.batches_done,
        "model": weights,
        "puzzle_rows": training.model.model.inner.puzzle_emb.rows if table is not None else 0,
        "ema": training.ema.shadow if training.ema else None,
        "optimizer": _moments(training),
        "optimizer_kind": training.optimizer_kind,
        "votes": votes,
        "world_size": ranks.world_size,
        "data_digest": training.data_digest,
        "config": to_dict(config),
    }


def rank_state(training: Training, ranks: Ranks) -> State:
    cuda = ranks.device.type == "cuda"
    embedding = getattr(training.model.model.inner, "puzzle_emb", None)
    writes_table = embedding is not None and (embedding.is_split or ranks.first)
    return {
        "carry": asdict(training.carry) if training.carry else None,
        "sums": asdict(training.sums) if training.sums else None,
        "puzzle_first": embedding.first if writes_table else 0,
        "puzzle_table": embedding.weights if writes_table else None,
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state(ranks.device) if cuda else None,
    }


def restore_weights(training: Training, config: PretrainConfig, state: State, path: Path) -> None:
    """Weights, average, puzzle table and step.  `state` is the shared one of checkpoint `path`."""
    refuse_another_arch(config, state["config"], path)
    load_into(training.model, state["model"], path)
    if config.arch.puzzle_emb_ndim:
        embedding = training.model.model.inner.puzzle_emb
        tables = _RankFiles(path, state["world_size"]).tables()
        same = state["data_digest"] == training.data_digest
        load_table(embedding, tables, state["puzzle_rows"], path, same_puzzles=same)
    if training.ema is not None:
        if state["ema"] is None:
            log.info("%s has no average: it starts from the weights", path)
        training.ema.load(state["ema"] or dict(training.model.named_parameters()))
    training.step = state["step"]


def restore_progress(
    training: Training, config: PretrainConfig, ranks: Ranks, state: State, path: Path
) -> None:
    """Moments, and where in the data the run is."""
    if training.optimizer is not None and state["optimizer"] is not None:
        _load_moments(training, state["optimizer"])
        if state["optimizer_kind"] != training.optimizer_kind:
            log.info("the optimiser was %s: the same maths", state["optimizer_kind"])
    changes = _changes_of_order(training, config, state)
    if changes:
        anew = config.epochs_per_iteration != _epochs_per_iteration(state["config"])
        training.iteration = 1 if anew else state["iteration"]
        log.info(
            "%s: iteration %d of the data starts anew, and so does every row's example",
            "; ".join(changes),
            training.iteration,
        )
        return
    training.iteration, training.batches_done = state["iteration"], state["batches_done"]
    _restore_rows(training, config, ranks, _RankFiles(path, state["world_size"]))


def refuse_other_puzzles(config: PretrainConfig, digest: str, state: State, path: Path) -> None:
    """`digest` is this run's.  Where no vector belongs to a puzzle, other ones are no mistake."""
    if state["data_digest"] == digest or config.new_puzzles or not config.arch.puzzle_emb_ndim:
        return
    raise CheckpointError(
        f"{path} was trained on other data than {', '.join(config.data_paths)}: its puzzle vectors"
        f" belong to other identifiers. Give data_paths=[{','.join(state['config']['data_paths'])}]"
        " as it had, built with the same options; or, to train other puzzles with its weights,"
        " new_puzzles=True: every puzzle's vector starts as the mean of the old ones"
    )


def refuse_another_arch(config: PretrainConfig, old: State, path: Path) -> None:
    """Before any weight is touched; a setting that no weight depends on is only mentioned."""
    if old["arch_name"] != config.arch_name:
        raise CheckpointError(
            f"{path} is of another architecture: arch={old['arch_name']}, this run has"
            f" arch={config.arch_name}"
        )
    ours, theirs = asdict(config.arch), old["arch"]
    differing = [name for name in ours if name in theirs and ours[name] != theirs[name]]
    shapes = [name for name in differing if name in SHAPES]
    if shapes:
        words = " ".join(f"arch.{name}={theirs[name]}" for name in shapes)
        raise CheckpointError(
            f"{path} is of another architecture: it was trained with {words}, this run has"
            f" {' '.join(f'arch.{name}={ours[name]}' for name in shapes)}"
        )
    for name in differing:
        log.info("arch.%s is %s, the checkpoint had %s", name, ours[name], theirs[name])


SHAPES = (
    *("hidden_size", "num_heads", "L_layers", "num_layers", "expansion", "mlp_t"),
    *("puzzle_emb_ndim", "puzzle_emb_len", "pos_encodings"),
)


class _RankFiles:
    """The files of the ranks that wrote a checkpoint."""

    def __init__(self, path: Path, world_size: int) -> None:
        self._path, self.world_size = path, world_size

    def read(self, rank: int) -> State:
        return read_file(self._path / f"rank_{rank}.pt")

    def tables(self) -> Iterator[tuple[int, Tensor]]:
        for rank in range(self.world_size):
            state = self.read(rank)
            if state["puzzle_table"] is not None:
                yield state["puzzle_first"], state["puzzle_table"]


def _restore_rows(
    training: Training, config: PretrainConfig, ranks: Ranks, files: _RankFiles
) -> None:
    device = ranks.device
    if files.world_size == ranks.world_size:
        state = files.read(ranks.rank)
        training.carry = Carry(**_on(state["carry"], device)) if state["carry"] else None
        training.sums = Sums(**_on(state["sums"], device)) if state["sums"] else None
        torch.set_rng_state(state["rng"].clone())
        if state["cuda_rng"] is not None and device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_rng"].clone(), device)
        return
    log.info(
        "the checkpoint is of %d ranks, this run of %d: its rows are dealt out again, the batches"
        " stay the same",
        files.world_size,
        ranks.world_size,
    )
    states = [files.read(rank) for rank in range(files.world_size)]
    if states[0]["carry"] is not None:
        local = config.global_batch_size // ranks.world_size
        rows = slice(ranks.rank * local, (ranks.rank + 1) * local)
        carries = [state["carry"] for state in states]
        training.carry = Carry(**_on(_rows_of(carries, rows), device))
    if states[0]["sums"] is not None:
        values = torch.stack([state["sums"]["values"] for state in states]).sum(0)
        values = values if ranks.first else torch.zeros_like(values)
        training.sums = Sums(**_on(states[0]["sums"] | {"values": values}, device))


def _rows_of(parts: list[Any], rows: slice) -> Any:
    """Rows of tensors that are spread over equal parts, in any nesting of dictionaries."""
    if isinstance(parts[0], dict):
        return {name: _rows_of([part[name] for part in parts], rows) for name in parts[0]}
    each = len(parts[0])
    pieces = [
        part[max(rows.start - at, 0) : max(rows.stop - at, 0)]
        for at, part in zip(range(0, each * len(parts), each), parts, strict=True)
    ]
    return torch.cat(pieces)


def _on(value: Any, device: torch.device) -> Any:
    """A copy on the device: what a file holds is only mapped."""
    if isinstance(value, dict):
        return {name: _on(item, device) for name, item in value.items()}
    if isinstance(value, Tensor):
        return value.to(device, copy=True)
    return value


def _changes_of_order(training: Training, config: PretrainConfig, state: State) -> list[str]:
    """Why the position in the data means nothing in this run; empty if it does."""
    old = state["config"]
    changes = [
        f"{name} is {getattr(config, name)}, was {old[name]}"
        for name in ("global_batch_size", "seed")
        if getattr(config, name) != old[name]
    ]
    if training.data_digest != state["data_digest"]:
        changes.append("the dataset is another one")
    each = _epochs_per_iteration(old)
    was = min(each, old["epochs"] - (state["iteration"] - 1) * each)
    now = config.epochs_in(state["iteration"])
    if was != now:
        changes.append(f"iteration {state['iteration']} has {now} epochs, had {was}")
    return changes


def _epochs_per_iteration(old: State) -> int:
    return min(old["eval_interval"] or old["epochs"], old["epochs"])


def _moments(training: Training) -> State | None:
    if training.optimizer is None:
        return None
    states = [training.optimizer.state[vector] for vector in training.flat.vectors]
    named = {m: training.flat.named([state[m] for state in states]) for m in MOMENTS}
    return named | {"step": states[0]["step"]}


@torch.no_grad()
def _load_moments(training: Training, saved: State) -> None:
    states = [training.optimizer.state[vector] for vector in training.flat.vectors]
    for moment in MOMENTS:
        for name, own in training.flat.named([state[moment] for state in states]).items():
            own.copy_(saved[moment][name])
    for state in states:
        state["step"].copy_(saved["step"])
