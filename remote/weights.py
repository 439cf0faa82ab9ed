"""Weights by name: into a model, and from files of any origin.

Upstream's TRM saves a plain dictionary (`step_N`), with `_orig_mod.` before every name if it was
compiled; URM one that has it under `model_state_dict` (`step_N.pt`).
"""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from remote.models.act import ACTLossHead
from remote.models.sparse_embedding import SparseEmbedding

log = logging.getLogger(__name__)
TABLE = "model.inner.puzzle_emb.weights"
COMPILED = "_orig_mod."
Weights = dict[str, Tensor]


class CheckpointError(Exception):
    """There is no such checkpoint, or it is damaged, or does not fit this model."""


def read_file(path: Path) -> Any:
    """What torch.save wrote, lazily: tensors are read where they are used."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"no file {path}") from error
    except Exception as error:  # torch raises many kinds, by what is missing
        raise CheckpointError(f"{path} is no checkpoint, or damaged: {error}") from error


def plain(content: Any, path: Path) -> Weights:
    """The weights of an upstream file by our names."""
    weights = content.get("model_state_dict", content) if isinstance(content, dict) else {}
    weights = {str(name).removeprefix(COMPILED): value for name, value in weights.items()}
    if not weights or not all(isinstance(value, Tensor) for value in weights.values()):
        raise CheckpointError(f"{path} holds no weights")
    return weights


@torch.no_grad()
def load_into(model: ACTLossHead, weights: Weights, source: Path) -> None:
    """All weights but the puzzle table, which `load_table` does."""
    own = {name: tensor for name, tensor in model.state_dict().items() if name != TABLE}
    weights = _renamed(own, {name: tensor for name, tensor in weights.items() if name != TABLE})
    if missing := sorted(own.keys() - weights.keys()):
        raise CheckpointError(
            f"{source} is of another architecture: it has no {missing[0]} ({len(missing)} are"
            " missing); give the arch.* settings that it was trained with"
        )
    if foreign := sorted(weights.keys() - own.keys()):
        raise CheckpointError(
            f"{source} is of another architecture: this model has no {foreign[0]}"
            f" ({len(foreign)} are foreign); give the arch.* settings that it was trained with"
        )
    for name, tensor in own.items():
        if tensor.shape != weights[name].shape:
            raise CheckpointError(
                f"{source} is of another architecture: its {name} is {tuple(weights[name].shape)},"
                f" this model's {tuple(tensor.shape)}; give the arch.* settings that it was"
                " trained with"
            )
    for name, tensor in own.items():
        tensor.copy_(weights[name])


@torch.no_grad()
def load_table(
    embedding: SparseEmbedding,
    parts: Iterable[tuple[int, Tensor]],
    rows: int,
    source: Path,
    *,
    same_puzzles: bool = True,
) -> None:
    """From a table of `rows` rows in parts (first row, its rows); each rank takes its own.

    A table of other puzzles, as one of another size is: every row becomes its mean.
    """
    same_puzzles = same_puzzles and rows == embedding.rows
    own, first = embedding.weights, embedding.first
    total = torch.zeros(own.shape[1], dtype=torch.float64)
    for start, part in parts:
        if part.shape[1] != own.shape[1]:
            raise CheckpointError(
                f"{source} has puzzle vectors of {part.shape[1]}, this model of {own.shape[1]}:"
                " set arch.puzzle_emb_ndim"
            )
        if not same_puzzles:
            total += part.sum(0, dtype=torch.float64)
            continue
        begin, end = max(start, first), min(start + len(part), first + len(own))
        if begin < end:
            own[begin - first : end - first] = part[begin - start : end - start].to(own.device)
    if not same_puzzles:
        own[:] = (total / rows).to(own)
        log.info(
            "the puzzle table of %s is of other puzzles (it has %d rows, this dataset %d):"
            " every row starts as the mean of the old ones",
            source,
            rows,
            embedding.rows,
        )


def _renamed(own: Weights, weights: Weights) -> Weights:
    """Names that only differ in the module inside a layer's MLP (URM's convolution) are matched."""
    result = {name: tensor for name, tensor in weights.items() if name in own}
    for name in own.keys() - result.keys():
        before, _, (kind) = name.rpartition(".")
        parent = before.rpartition(".")[0]
        alike = [
            other
            for other, tensor in weights.items()
            if other not in own
            and other.startswith(parent + ".")
            and other.rpartition(".")[2] == kind
            and tensor.shape == own[name].shape
        ]
        if parent.endswith(".mlp") and len(alike) == 1:
            result[name] = weights[alike[0]]
            weights = {key: value for key, value in weights.items() if key != alike[0]}
    return result | {n: t for n, t in weights.items() if n not in own and n not in result}
