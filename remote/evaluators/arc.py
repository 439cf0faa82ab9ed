"""ARC: undo each augmentation, let the answers vote, count the right ones among the first K.

Votes are those of one evaluation.  Upstream mixes in all earlier ones of the run by default; here
that is the option `aggregated_voting`, whose votes are in the checkpoint.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from remote.dataset.grids import NAME_SEPARATOR, parse_grid
from remote.dataset.sets import held_out_puzzles, names_of
from remote.evaluators.originals import name_of, original_grids, rows_of
from remote.evaluators.votes import (
    NONE,
    Box,
    Votes,
    from_tensors,
    joined,
    of_all_ranks,
    ranked,
    to_tensors,
)
from remote.files import appearing

PLACEHOLDER = [[0]]  # what is handed in where there is no answer: the pair keeps its slot
NOT_AUGMENTED = "t0" + NAME_SEPARATOR + "0123456789"
NO_PAIR = -1


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1  # True is an int too


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(map(_is_count, value))


class ARC:
    name = "ARC"
    OPTIONS: ClassVar[dict[str, tuple[str, Callable[[Any], bool]]]] = {  # what each expects
        "aggregated_voting": ("true or false", _is_flag),
        "pass_Ks": ("a list of whole numbers from 1", _are_counts),
        "submission_K": ("a whole number from 1", _is_count),
    }

    def __init__(self, data: Sequence[Path], options: dict[str, Any]) -> None:
        puzzles = held_out_puzzles(data)
        self._puzzles = list(puzzles)
        # Of 1.2 million names a tenth is asked for.
        self._names = {
            identifier: name
            for identifier, name in enumerate(names_of(data))
            if name.partition(NAME_SEPARATOR)[0] in puzzles
        }
        self._pairs = [(name, pair) for name, puzzle in puzzles.items() for pair in puzzle["test"]]
        # Of two pairs with one input the first is voted for, and the second has its answers too.
        self._inputs = [(name, _name_of(pair["input"])) for name, pair in self._pairs]
        self._numbers = {key: n for n, key in reversed(list(enumerate(self._inputs)))}
        self._aggregated = options.get("aggregated_voting", False)
        self._pass_ks = options.get("pass_Ks", [1, 2, 5, 10, 100, 1000])
        self._attempts = options.get("submission_K", 2)
        self._box = Box()
        self._earlier = NONE  # of the first rank; votes of evaluations before this one

    def begin(self) -> None:
        self._box = Box()

    def update(
        self,
        *,
        examples: np.ndarray,
        puzzle_identifiers: np.ndarray,
        inputs: np.ndarray,
        preds: np.ndarray,
        q_halt_logits: np.ndarray,
    ) -> None:
        """Rows whose example is negative are blanks.  inputs, preds: int [B, 900]."""
        known = [identifier in self._names for identifier in puzzle_identifiers.tolist()]
        rows = np.flatnonzero((examples >= 0) & known)
        names = [self._names[identifier] for identifier in puzzle_identifiers[rows].tolist()]
        bases, symmetries, undo = _augmentations(names)
        questions = original_grids(inputs[rows].astype(np.uint8), symmetries, undo)
        answers = original_grids(preds[rows].astype(np.uint8), symmetries, undo)
        keys = zip(bases, questions, strict=True)
        pairs = np.array([self._numbers.get(key, NO_PAIR) for key in keys], int)
        asked = np.flatnonzero(pairs != NO_PAIR)
        self._box.put(
            examples=examples[rows][asked],
            pairs=pairs[asked],
            answers=[answers[row] for row in asked.tolist()],
            confidences=1 / (1 + np.exp(-q_halt_logits[rows][asked].astype(np.float64))),
        )

    def votes(self) -> Votes:
        """What this rank has gathered in this evaluation."""
        return self._box.content()

    @property
    def remembers(self) -> bool:
        return self._aggregated

    def state(self) -> dict[str, Any]:
        """For a checkpoint, of the first rank."""
        return to_tensors(self._earlier)

    def restore(self, state: dict[str, Any]) -> None:
        self._earlier = from_tensors(state)

    def result(self, parts: list[Votes], directory: Path) -> dict[str, float]:
        """pass@K from the votes of all ranks; writes submission.json.  On the first rank."""
        votes = of_all_ranks(parts)
        if self._aggregated:
            votes = self._earlier = joined([self._earlier, votes])
        answers = ranked(votes, len(self._pairs))
        places = {grid: place for place, grid in enumerate(votes.grids)}
        right: dict[str, list] = {name: [] for name in self._puzzles}  # each pair, at each K
        submission: dict[str, list] = {name: [] for name in self._puzzles}
        for (name, pair), key in zip(self._pairs, self._inputs, strict=True):
            best = answers[self._numbers[key]]
            found = np.flatnonzero(best == places.get(_name_of(pair["output"]), -1))
            at = int(found[0]) if len(found) else len(best) + max(self._pass_ks)
            right[name].append([at < k for k in self._pass_ks])
            attempts = [rows_of(votes.grids[place]) for place in best[: self._attempts]]
            submission[name].append(self._handed_in(attempts))
        with appearing(directory / "submission.json") as partial:
            partial.write_text(json.dumps(submission))
        shares = [np.mean(pairs, axis=0) for pairs in right.values() if pairs]
        scores = sum(shares, np.zeros(len(self._pass_ks))) / max(len(right), 1)
        names = [f"{self.name}/pass@{k}" for k in self._pass_ks]
        return dict(zip(names, scores.tolist(), strict=True))

    def _handed_in(self, attempts: list[list]) -> dict[str, list]:
        attempts = [rows or PLACEHOLDER for rows in attempts] or [PLACEHOLDER]
        attempts += [attempts[0]] * (self._attempts - len(attempts))
        return {f"attempt_{number}": rows for number, rows in enumerate(attempts, start=1)}


def _augmentations(names: list[str]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Base puzzles, symmetries int [N], and maps that undo the colours uint8 [N, 10]."""
    parts = [name.partition(NAME_SEPARATOR) for name in names]
    codes = "".join(code or NOT_AUGMENTED for _, _, code in parts)
    digits = np.frombuffer(codes.encode(), np.uint8).reshape(len(names), len(NOT_AUGMENTED)) - 48
    undo = np.argsort(digits[:, -10:], axis=1).astype(np.uint8)
    return [base for base, _, _ in parts], digits[:, 1].astype(int), undo


def _name_of(rows: list[list[int]]) -> bytes:
    return name_of(parse_grid(rows)) if rows and rows[0] else b""
