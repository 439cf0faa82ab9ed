"""Checkpoints: directories `step_N` that appear whole or not at all.

Each holds the weights, their average, the optimiser's moments, and the position in the data; and
one file per rank with its carry and random states.  The box can vanish any second, so everything is
written beside and renamed.
"""

import json
import logging
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from remote.config import PretrainConfig, to_dict
from remote.models.act import Carry
from remote.ranks import Ranks
from remote.training import Training

log = logging.getLogger(__name__)
FORMAT = 1
STATE = "state.pt"


class CheckpointError(Exception):
    """There is no such checkpoint, or it does not fit this model."""


def save(training: Training, config: PretrainConfig, ranks: Ranks, votes: dict) -> Path:
    """Called by all ranks.  `votes` is what evaluators keep from one evaluation to the next."""
    final = Path(config.checkpoint_path) / f"step_{training.step}"
    partial = final.with_name(final.name + ".tmp")
    if ranks.first:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    ranks.wait()
    _save(partial / f"rank_{ranks.rank}.pt", _rank_state(training, ranks))
    if ranks.first:
        _save(partial / STATE, _shared_state(training, votes) | {"world_size": ranks.world_size})
        (partial / "config.json").write_text(json.dumps(to_dict(config), indent=1))
    ranks.wait()
    if ranks.first:
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
        log.info("saved %s", final)
        _prune(final.parent, config.keep_last)
    ranks.wait()
    return final


def load(training: Training, config: PretrainConfig, ranks: Ranks) -> dict:
    """Continue where `load_checkpoint` left off; returns the evaluators' votes."""
    path = find(config.load_checkpoint, Path(config.checkpoint_path))
    if path.is_file():
        load_weights(training, _load(path, ranks.device))
        training.share_weights()
        log.info("loaded weights only from %s: step, rates and data start anew", path)
        return {}
    state = _load(path / STATE, ranks.device)
    load_weights(training, state["model"])
    if training.ema is not None and state["ema"] is not None:
        training.ema.load(state["ema"])
    elif training.ema is not None:
        training.ema.load(dict(training.model.named_parameters()))
        log.info("%s has no average: it starts from the weights", path)
    if training.optimizer is not None and state["optimizer"] is not None:
        training.optimizer.load_state_dict(state["optimizer"])
    for name in ("step", "iteration", "batches_done"):
        setattr(training, name, state[name])
    if state["world_size"] == ranks.world_size:
        _restore_rank(training, _load(path / f"rank_{ranks.rank}.pt", ranks.device))
    else:
        log.info("%s is of %d ranks: the carry starts anew", path, state["world_size"])
    log.info("continuing from %s at step %d", path, training.step)
    return state["votes"]


def find(wanted: str, run: Path) -> Path:
    """A step directory, or a file of weights, from what the user named."""
    if wanted == "latest":
        return _newest(run)
    if wanted.isdigit() or wanted.startswith("step_"):
        inside = run / f"step_{wanted.removeprefix('step_')}"
        if inside.exists():
            return inside
    path = Path(wanted)
    if path.is_file() or (path / STATE).exists():
        return path
    if path.is_dir():
        return _newest(path)
    raise CheckpointError(f"no checkpoint {wanted}, neither here nor in {run}")


def load_weights(training: Training, weights: dict[str, Any]) -> None:
    """Ours or upstream's, compiled or not; a puzzle table of another size becomes its mean."""
    weights = weights.get("model_state_dict", weights)
    weights = {name.removeprefix("_orig_mod."): tensor for name, tensor in weights.items()}
    own = training.model.state_dict()
    table = "model.inner.puzzle_emb.weights"
    if table in own and table in weights and own[table].shape != weights[table].shape:
        log.info("the puzzle table has another size: every row starts as the mean of the old ones")
        weights[table] = weights[table].mean(dim=0, keepdim=True).expand_as(own[table])
    if missing := sorted(own.keys() - weights.keys()):
        raise CheckpointError(f"the checkpoint has no {missing[0]} ({len(missing)} are missing)")
    for name, tensor in own.items():
        if tensor.shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)}, this model's {tuple(tensor.shape)}"
            raise CheckpointError(f"the checkpoint's {name} is {shapes}")
        tensor.copy_(weights[name])


def _shared_state(training: Training, votes: dict) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "step": training.step,
        "iteration": training.iteration,
        "batches_done": training.batches_done,
        "model": training.model.state_dict(),
        "ema": training.ema.shadow if training.ema else None,
        "optimizer": training.optimizer.state_dict() if training.optimizer else None,
        "puzzle_optimizer": {},  # SignSGD remembers nothing; the table is in the model
        "votes": votes,
    }


def _rank_state(training: Training, ranks: Ranks) -> dict[str, Any]:
    cuda = ranks.device.type == "cuda"
    return {
        "carry": asdict(training.carry) if training.carry else None,
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state(ranks.device) if cuda else None,
    }


def _restore_rank(training: Training, state: dict[str, Any]) -> None:
    training.carry = Carry(**state["carry"]) if state["carry"] else None
    torch.set_rng_state(state["rng"].cpu())
    if state["cuda_rng"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda_rng"].cpu())


def _newest(run: Path) -> Path:
    if steps := _steps(run):
        return steps[-1]
    raise CheckpointError(f"no checkpoint in {run}")


def _steps(run: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    found = [path for path in run.glob("step_*") if path.name[5:].isdigit()]
    return sorted(found, key=lambda path: int(path.name[5:]))


def _prune(run: Path, keep: int) -> None:
    for path in _steps(run)[:-keep] if keep else []:
        if path.is_dir():
            shutil.rmtree(path)


def _save(path: Path, content: dict[str, Any]) -> None:
    with path.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())


def _load(path: Path, device: torch.device) -> dict[str, Tensor | Any]:
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"no file {path}") from error
