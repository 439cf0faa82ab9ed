"""ARC: undo each augmentation, let the answers vote, count the right ones among the first K.

Votes are those of one evaluation.  Upstream mixes in all earlier ones of the run by default; here
that is the option `aggregated_voting`, whose votes are in the checkpoint.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from remote.dataset.grids import (
    Grid,
    crop,
    crop_sizes,
    parse_grid,
    parse_name,
    undo_augmentation,
)
from remote.dataset.layout import read_json

PLACEHOLDER = [[0]]  # what is handed in where there is no answer: the pair keeps its slot
Vote = tuple[int, int, int, bytes, bytes, float]


class ARC:
    name = "ARC"
    OPTIONS = ("aggregated_voting", "pass_Ks", "submission_K")

    def __init__(self, data: Path, options: dict[str, Any]) -> None:
        self._names: list[str] = read_json(data / "identifiers.json")
        self._puzzles: dict[str, dict] = read_json(data / "test_puzzles.json")
        self._aggregated = bool(options.get("aggregated_voting", False))
        self._pass_ks = options.get("pass_Ks", [1, 2, 5, 10, 100, 1000])
        self._attempts = int(options.get("submission_K", 2))
        self._round = 0
        self._votes: list[Vote] = []  # round, example, puzzle id, input, answer, confidence
        self._grids: dict[bytes, Grid] = {}  # answers by digest

    def begin(self) -> None:
        self._round += 1
        if not self._aggregated:
            self._votes, self._grids = [], {}

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
        inputs, preds = inputs.astype(np.uint8), preds.astype(np.uint8)
        input_sizes, pred_sizes = crop_sizes(inputs), crop_sizes(preds)
        confidences = 1 / (1 + np.exp(-q_halt_logits.astype(np.float64)))
        for row in np.flatnonzero(examples >= 0):
            identifier = int(puzzle_identifiers[row])
            _, symmetry, undo = parse_name(self._names[identifier])
            question = undo_augmentation(crop(inputs[row], input_sizes[row]), symmetry, undo)
            answer = undo_augmentation(crop(preds[row], pred_sizes[row]), symmetry, undo)
            key = _digest(answer)
            self._grids.setdefault(key, answer)
            example, confidence = int(examples[row]), float(confidences[row])
            vote = (self._round, example, identifier, _digest(question), key, confidence)
            self._votes.append(vote)

    def state(self) -> dict[str, Any]:
        """What one rank knows, as plain values: to gather, and to keep in a checkpoint."""
        grids = {key: grid.tolist() for key, grid in self._grids.items()}
        return {"round": self._round, "votes": [list(v) for v in self._votes], "grids": grids}

    def restore(self, state: dict[str, Any]) -> None:
        self._round = state["round"]
        self._votes = [tuple(vote) for vote in state["votes"]]
        self._grids = {key: _grid(rows) for key, rows in state["grids"].items()}

    @property
    def remembers(self) -> bool:
        return self._aggregated

    def result(self, states: list[dict[str, Any]], directory: Path) -> dict[str, float]:
        """pass@K from the states of all ranks; writes submission.json."""
        # In the order of the data, so that ties break alike for any number of ranks.
        votes = sorted((vote for state in states for vote in state["votes"]), key=lambda v: v[:2])
        grids = {key: rows for state in states for key, rows in state["grids"].items()}
        ranking = self._rank(votes)
        scores = dict.fromkeys(self._pass_ks, 0.0)
        submission: dict[str, list] = {}
        for name, puzzle in self._puzzles.items():
            pairs = puzzle["test"]
            submission[name] = []
            right = dict.fromkeys(self._pass_ks, 0)
            for pair in pairs:
                answers = ranking.get((name, _digest(_grid(pair["input"]))), [])
                label = _digest(_grid(pair["output"]))
                for k in self._pass_ks:
                    right[k] += label in answers[:k]
                submission[name].append(self._attempt([grids[key] for key in answers]))
            for k in self._pass_ks:
                scores[k] += right[k] / len(pairs)
        directory.mkdir(parents=True, exist_ok=True)
        partial = directory / "submission.json.tmp"
        partial.write_text(json.dumps(submission))
        partial.rename(directory / "submission.json")
        puzzles = max(len(self._puzzles), 1)
        return {f"{self.name}/pass@{k}": score / puzzles for k, score in scores.items()}

    def _rank(self, votes: list[list]) -> dict[tuple[str, bytes], list[bytes]]:
        """Answers to each test pair, most votes first, then the highest mean confidence."""
        tallies: dict[tuple[str, bytes], dict[bytes, list[float]]] = {}
        for _, _, identifier, question, answer, confidence in votes:
            base = parse_name(self._names[identifier])[0]
            tally = tallies.setdefault((base, question), {}).setdefault(answer, [0, 0.0])
            tally[0] += 1
            tally[1] += confidence
        return {
            pair: sorted(
                answers,
                key=lambda answer: (answers[answer][0], answers[answer][1] / answers[answer][0]),
                reverse=True,
            )
            for pair, answers in tallies.items()
        }

    def _attempt(self, answers: list[list]) -> dict[str, list]:
        answers = [rows if rows and rows[0] else PLACEHOLDER for rows in answers[: self._attempts]]
        answers = answers or [PLACEHOLDER]
        answers += [answers[0]] * (self._attempts - len(answers))
        return {f"attempt_{number}": rows for number, rows in enumerate(answers, start=1)}


def _grid(rows: list[list[int]]) -> Grid:
    return parse_grid(rows) if rows and rows[0] else np.zeros((0, 0), np.uint8)


def _digest(grid: Grid) -> bytes:
    content = bytes(grid.shape) + np.ascontiguousarray(grid).tobytes()
    return hashlib.blake2b(content, digest_size=16).digest()
