"""Votes, pass@K and submission.json, on answers made up from the right ones."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from remote.config import load_config
from remote.dataset.grids import dihedral
from remote.dataset.layout import Split, open_split
from remote.evaluators import make
from remote.evaluators.arc import ARC
from remote.evaluators.originals import name_of, original_grids, rows_of
from remote.evaluators.votes import from_tensors
from remote.overrides import ConfigError


@pytest.fixture(scope="module")
def test_split(small_set: Path) -> Split:
    return open_split(small_set, "test")


def answer(
    evaluator: ARC, split: Split, preds: np.ndarray, confidence: np.ndarray, rows: np.ndarray
) -> None:
    owners = np.searchsorted(split.puzzle_indices, rows, side="right") - 1
    evaluator.update(
        examples=rows,
        puzzle_identifiers=split.puzzle_identifiers[owners],
        inputs=split.inputs[rows].astype(np.int32),
        preds=preds[rows].astype(np.int32),
        q_halt_logits=confidence[rows],
    )


def submission(directory: Path) -> dict:
    return json.loads((directory / "submission.json").read_text())


def test_right_answers_score_one_at_every_k(
    small_set: Path, test_split: Split, tmp_path: Path
) -> None:
    (evaluator,) = make([{"name": "arc@ARC"}], [small_set])
    evaluator.begin()
    every = np.arange(len(test_split.inputs))
    answer(evaluator, test_split, test_split.labels, np.zeros(len(every)), every)
    scores = evaluator.result([evaluator.votes()], tmp_path)
    assert scores == {f"ARC/pass@{k}": 1.0 for k in (1, 2, 5, 10, 100, 1000)}
    puzzles = json.loads((small_set / "test_puzzles.json").read_text())
    expected = {n: [pair["output"] for pair in p["test"]] for n, p in puzzles.items()}
    for attempt in ("attempt_1", "attempt_2"):  # one candidate only: it is handed in twice
        found = {n: [pair[attempt] for pair in pairs] for n, pairs in submission(tmp_path).items()}
        assert found == expected


def test_a_pair_without_answer_keeps_its_slot(
    small_set: Path, test_split: Split, tmp_path: Path
) -> None:
    puzzles = json.loads((small_set / "test_puzzles.json").read_text())
    assert any(len(puzzle["test"]) > 1 for puzzle in puzzles.values())
    (evaluator,) = make([{"name": "arc@ARC"}], [small_set])
    evaluator.begin()
    # Only the last pair of each augmentation is answered.
    last = test_split.puzzle_indices[1:] - 1
    answer(evaluator, test_split, test_split.labels, np.zeros(len(test_split.inputs)), last)
    scores = evaluator.result([evaluator.votes()], tmp_path)
    for name, puzzle in puzzles.items():
        attempts = submission(tmp_path)[name]
        assert len(attempts) == len(puzzle["test"])
        assert attempts[-1]["attempt_1"] == puzzle["test"][-1]["output"]
        assert all(a == {"attempt_1": [[0]], "attempt_2": [[0]]} for a in attempts[:-1])
    share = np.mean([1 / len(puzzle["test"]) for puzzle in puzzles.values()])
    assert scores["ARC/pass@1"] == pytest.approx(share)


def test_votes_count_first_and_confidence_breaks_ties(
    small_set: Path, test_split: Split, tmp_path: Path
) -> None:
    """Each pair is asked three times.  Two right answers win over one wrong, confident one; where
    all three are wrong and different, the confident ones are handed in."""
    (evaluator,) = make([{"name": "arc@ARC"}], [small_set])
    rows = np.arange(len(test_split.inputs))
    owners = np.searchsorted(test_split.puzzle_indices, rows, side="right") - 1
    turn = owners % 3  # which augmentation of its group; each group has three
    preds, confidence = test_split.labels.copy(), np.zeros(len(rows))
    preds[turn == 2] = single_cell(5)
    confidence[turn == 2] = 9.0
    evaluator.begin()
    answer(evaluator, test_split, preds, confidence, rows)
    scores = evaluator.result([evaluator.votes()], tmp_path)
    assert scores["ARC/pass@1"] == 1.0

    for augmentation, colour in enumerate((0, 1, 2)):  # colours change with the augmentation
        preds[turn == augmentation] = single_cell(0, side=colour + 1)
        confidence[turn == augmentation] = (-1.0, 3.0, 1.0)[augmentation]
    evaluator.begin()
    answer(evaluator, test_split, preds, confidence, rows)
    scores = evaluator.result([evaluator.votes()], tmp_path)
    assert scores["ARC/pass@1000"] == 0.0
    for attempts in submission(tmp_path).values():
        assert [len(attempts[0][f"attempt_{n}"]) for n in (1, 2)] == [2, 3]


@pytest.mark.parametrize("world_size", [2, 4])
def test_any_number_of_ranks_hands_in_the_same_file(
    world_size: int, small_set: Path, test_split: Split, tmp_path: Path
) -> None:
    random = np.random.Generator(np.random.Philox(4))
    rows = np.arange(len(test_split.inputs))
    sides = random.integers(1, 4, len(rows))  # few different answers: many ties
    preds = np.stack([single_cell(0, side=int(side)) for side in sides])
    confidence = random.integers(0, 2, len(rows)).astype(float)
    files = []
    for shares in ([rows], [rows[rank::world_size] for rank in range(world_size)]):
        parts = []
        for share in shares:
            (evaluator,) = make([{"name": "arc@ARC"}], [small_set])
            evaluator.begin()
            answer(evaluator, test_split, preds, confidence, share)
            parts.append(evaluator.votes())
        evaluator.result(parts, tmp_path / str(len(parts)))
        files.append((tmp_path / str(len(parts)) / "submission.json").read_bytes())
    assert files[0] == files[1]
    assert json.loads(files[0]) == handed_in_naively(small_set, test_split, preds, confidence)


def handed_in_naively(data: Path, split: Split, preds: np.ndarray, confidence: np.ndarray) -> dict:
    """One vote after the other, in the order of the data, which settles ties."""
    names = json.loads((data / "identifiers.json").read_text())
    puzzles = json.loads((data / "test_puzzles.json").read_text())
    tallies: dict[tuple, dict[tuple, list[float]]] = {}
    for puzzle, identifier in enumerate(split.puzzle_identifiers.tolist()):
        name, *augmentation = names[identifier].split("|||")
        for row in range(*split.puzzle_indices[puzzle : puzzle + 2]):
            question, vote = (shown(tokens[row], augmentation) for tokens in (split.inputs, preds))
            tally = tallies.setdefault((name, question), {}).setdefault(vote, [0, 0.0])
            tally[0] += 1
            tally[1] += 1 / (1 + np.exp(-float(confidence[row])))
    attempts: dict[str, list] = {}
    for name, puzzle in puzzles.items():
        for pair in puzzle["test"]:
            tally = tallies[name, tuple(map(tuple, pair["input"]))]
            best = [vote for vote, _ in sorted(tally.items(), key=lambda entry: order(*entry[1]))]
            both = [[list(line) for line in grid] for grid in (best * 2)[:2]]
            pairs = attempts.setdefault(name, [])
            pairs.append({"attempt_1": both[0], "attempt_2": both[1]})
    return attempts


def order(count: float, confidences: float) -> tuple[float, float]:
    return -count, -confidences / count


def shown(tokens: np.ndarray, augmentation: list[str]) -> tuple:
    """The grid of a sequence, as the puzzle shows it; by trying every size and every step back."""
    canvas = tokens.reshape(30, 30).astype(int) - 2
    sizes = [(h, w) for h in range(1, 31) for w in range(1, 31) if (canvas[:h, :w] >= 0).all()]
    height, width = max(sizes, key=lambda size: size[0] * size[1], default=(0, 0))
    grid = canvas[:height, :width]
    if augmentation:
        symmetry, colours = int(augmentation[0][1]), [int(digit) for digit in augmentation[1]]
        grid = np.vectorize(colours.index, otypes=[int])(grid)
        turned = [dihedral(grid, back) for back in range(8)]
        grid = next(g for g in turned if np.array_equal(dihedral(g, symmetry), grid))
    return tuple(map(tuple, grid.tolist()))


@pytest.mark.parametrize("aggregated", [False, True])
def test_votes_of_earlier_evaluations_count_only_if_asked_for(
    aggregated: bool, small_set: Path, test_split: Split, tmp_path: Path
) -> None:
    (evaluator,) = make([{"name": "arc@ARC", "aggregated_voting": aggregated}], [small_set])
    rows = np.arange(len(test_split.inputs))
    evaluator.begin()
    answer(evaluator, test_split, test_split.labels, np.full(len(rows), 5.0), rows)
    evaluator.result([evaluator.votes()], tmp_path)
    (resumed,) = make([{"name": "arc@ARC", "aggregated_voting": aggregated}], [small_set])
    torch.save(evaluator.state(), tmp_path / "votes")
    resumed.restore(torch.load(tmp_path / "votes", weights_only=True))
    resumed.begin()
    wrong = np.stack([single_cell(0)] * len(rows))
    answer(resumed, test_split, wrong, np.zeros(len(rows)), rows)
    scores = resumed.result([resumed.votes()], tmp_path)
    assert scores["ARC/pass@2"] == (1.0 if aggregated else 0.0)


def test_blank_rows_have_no_vote(small_set: Path, test_split: Split) -> None:
    (evaluator,) = make([{"name": "arc@ARC"}], [small_set])
    evaluator.begin()
    evaluator.update(
        examples=np.array([-1]),
        puzzle_identifiers=np.array([0]),
        inputs=test_split.inputs[:1],
        preds=test_split.labels[:1],
        q_halt_logits=np.zeros(1),
    )
    assert len(evaluator.votes().examples) == 0
    assert evaluator.votes().grids == []


def test_a_checkpoint_has_the_votes_of_all_ranks_and_whole_evaluations_only(
    small_set: Path, test_split: Split, tmp_path: Path
) -> None:
    """The first rank writes it; an evaluation that was cut off is made again."""
    options = [{"name": "arc@ARC", "aggregated_voting": True}]
    first, second = (make(options, [small_set])[0] for _ in range(2))
    rows = np.arange(len(test_split.inputs))
    for rank, evaluator in enumerate((first, second)):
        evaluator.begin()
        answer(evaluator, test_split, test_split.labels, np.zeros(len(rows)), rows[rank::2])
    assert len(from_tensors(first.state()).examples) == 0
    first.result([first.votes(), second.votes()], tmp_path)
    first.begin()
    answer(first, test_split, test_split.labels, np.zeros(len(rows)), rows[:3])
    kept = from_tensors(first.state())
    assert kept.examples.tolist() == rows.tolist()
    assert len(kept.grids) == len(set(kept.grids))


def test_grids_come_back_from_every_symmetry_size_and_colouring() -> None:
    random = np.random.Generator(np.random.Philox(8))
    tokens = random.integers(0, 12, (400, 900)).astype(np.uint8)
    for row, (height, width) in enumerate(random.integers(0, 31, (400, 2)).tolist()):
        canvas = tokens[row].reshape(30, 30)
        canvas[:height, :width] = random.integers(2, 12, (height, width))
        if height < 30:
            canvas[height, 0] = row % 2  # EOS, or PAD
    tokens[-1] = 0
    symmetries = random.integers(0, 8, 400)
    colours = random.permuted(np.tile(np.arange(10), (400, 1)), axis=1)
    undo = np.argsort(colours, axis=1).astype(np.uint8)
    found = original_grids(tokens, symmetries, undo)
    for row in range(400):
        augmentation = [f"t{symmetries[row]}", "".join(map(str, colours[row]))]
        expected = shown(tokens[row], augmentation)
        assert tuple(map(tuple, rows_of(found[row]))) == expected
        if expected:
            assert name_of(np.array(expected, np.uint8)) == found[row]
    assert found[-1] == b""


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": "arc@ACR"}, "no evaluator arc@ACR; there is arc@ARC"),
        ({"name": "arc@ARC", "agregated_voting": True}, "the nearest is aggregated_voting"),
    ],
)
def test_a_misspelt_evaluator_is_an_error(entry: dict, message: str, small_set: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        make([entry], [small_set])


@pytest.mark.parametrize(
    ("option", "text", "expected"),
    [
        *(("pass_Ks", text, "a list of whole numbers from 1") for text in ("x", "3", "[]")),
        *(("pass_Ks", text, "a list of whole numbers from 1") for text in ("[0]", "[1, x]")),
        *(("submission_K", text, "a whole number from 1") for text in ("0", "two", "1.5", "true")),
        *(("aggregated_voting", text, "true or false") for text in ("maybe", "1", "null")),
    ],
)
def test_an_option_of_nonsense_is_an_error(
    option: str, text: str, expected: str, small_set: Path
) -> None:
    config = load_config([f"evaluators=[{{name: arc@ARC, {option}: {text}}}]"])
    value = config.evaluators[0][option]
    with pytest.raises(ConfigError) as error:
        make(config.evaluators, [small_set])
    assert str(error.value) == f"evaluators: arc@ARC has {option}={value!r}: expected {expected}"


def single_cell(colour: int, side: int = 1) -> np.ndarray:
    """A prediction: a square of one colour.  Black is mapped to itself by every augmentation."""
    canvas = np.zeros((30, 30), np.uint8)
    canvas[:side, :side] = colour + 2
    return canvas.reshape(900)
