"""Votes for answers, and what they come to.

A vote is an answer to one of the test pairs, with the model's confidence in it.  Votes are ordered
by evaluation, then by the example they come from, whichever rank found them: this is the order in
which one process meets them, and it settles ties alike for any number of ranks.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

COLUMNS = {"examples": np.int32, "pairs": np.int32, "answers": np.int32, "confidences": np.float64}


@dataclass(frozen=True, slots=True)
class Votes:
    """N votes; `answers` are places in `grids`, each of which is there once.

    Plain values only, which travel between processes as they are.
    """

    examples: np.ndarray  # int32 [N]
    pairs: np.ndarray  # int32 [N]
    answers: np.ndarray  # int32 [N]
    confidences: np.ndarray  # float64 [N]
    grids: list[bytes]


NONE = Votes(**{name: np.empty(0, kind) for name, kind in COLUMNS.items()}, grids=[])


def of_all_ranks(parts: list[Votes]) -> Votes:
    """Of one evaluation, in the order of the examples."""
    votes = joined(parts)
    order = np.argsort(votes.examples, kind="stable")
    columns = {name: getattr(votes, name)[order] for name in COLUMNS}
    return Votes(**columns, grids=votes.grids)


def joined(parts: list[Votes]) -> Votes:
    """One after the other."""
    places: dict[bytes, int] = {}
    columns: dict[str, list[np.ndarray]] = {name: [] for name in COLUMNS}
    for part in parts:
        here = [places.setdefault(grid, len(places)) for grid in part.grids]
        for name, column in columns.items():
            column.append(getattr(part, name))
        columns["answers"][-1] = np.array(here, np.int32)[part.answers]
    whole = {name: np.concatenate(column) for name, column in columns.items()}
    return Votes(**whole, grids=list(places))


def ranked(votes: Votes, pairs: int) -> list[np.ndarray]:
    """For each test pair its answers, most votes first, then the highest mean confidence; then the
    one that was met first."""
    kinds = votes.pairs.astype(np.int64) * max(len(votes.grids), 1) + votes.answers
    kinds, first, kind = np.unique(kinds, return_index=True, return_inverse=True)
    counts = np.bincount(kind, minlength=len(kinds))
    means = np.bincount(kind, votes.confidences, len(kinds)) / counts
    pair, answer = votes.pairs[first], votes.answers[first]
    order = np.lexsort((first, -means, -counts, pair))
    bounds = np.searchsorted(pair[order], np.arange(1, pairs))
    return np.split(answer[order], bounds)


@dataclass(slots=True)
class Box:
    """Where one rank puts the votes of one evaluation, batch by batch."""

    _places: dict[bytes, int] = field(default_factory=dict)
    _batches: list[dict[str, np.ndarray]] = field(default_factory=list)

    def put(
        self,
        *,
        examples: np.ndarray,
        pairs: np.ndarray,
        answers: list[bytes],
        confidences: np.ndarray,
    ) -> None:
        places = self._places
        numbers = np.array([places.setdefault(answer, len(places)) for answer in answers])
        batch = {"examples": examples, "pairs": pairs, "answers": numbers}
        batch["confidences"] = confidences
        self._batches.append({name: batch[name].astype(kind) for name, kind in COLUMNS.items()})

    def content(self) -> Votes:
        columns = {
            name: np.concatenate([np.empty(0, kind), *(batch[name] for batch in self._batches)])
            for name, kind in COLUMNS.items()
        }
        return Votes(**columns, grids=list(self._places))


def to_tensors(votes: Votes) -> dict[str, Tensor]:
    """For a checkpoint, which is read back without running code from it."""
    tensors = {name: torch.from_numpy(getattr(votes, name)) for name in COLUMNS}
    tensors["grid_lengths"] = torch.tensor([len(grid) for grid in votes.grids], dtype=torch.int32)
    content = np.frombuffer(b"".join(votes.grids), np.uint8)
    return tensors | {"grids": torch.from_numpy(content.copy())}


def from_tensors(tensors: dict[str, Tensor]) -> Votes:
    arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
    content, ends = arrays["grids"].tobytes(), np.cumsum(arrays["grid_lengths"], dtype=np.int64)
    starts = ends - arrays["grid_lengths"]
    grids = [content[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    return Votes(**{name: arrays[name] for name in COLUMNS}, grids=grids)
