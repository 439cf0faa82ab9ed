"""What can be wrong with the files and the words of a fuse."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpurun import fuse
from gpurun.fuse import FuseState
from gpurun.shell import Result
from gpurun.shell.local import LocalShell
from tests.fuse.places import CLOCK, LABEL, Place, Says, place_with, rewrite, timer, wait_until

ODD = 'it\'s $(touch pwned) "`touch pwned`" ; & \\ ü\n@label@'


def test_odd_characters_in_label_and_paths_are_only_characters(tmp_path: Path) -> None:
    for place in place_with("sh", tmp_path):
        odd = Place(place.root, place.root / ODD, place.shell, label=ODD)
        state = odd.arm(1, ends_in_s=0)
        assert state is not None
        assert state.seq == 1
        wait_until(lambda: odd.times("destroyed") == 1)  # noqa: B023
        assert not list(tmp_path.rglob("pwned"))


def test_a_deleted_or_garbled_file_disarms_nothing(place: Place) -> None:
    place.arm(5, ends_in_s=4)
    for garbage in ("", "\n", "9 x y z\n", "9 " + LABEL + " 1 2\n", f"9 {LABEL} 1 2 3 x k 0\n"):
        (place.home / "fuse.timer").write_text(garbage)
        place.look_again()
        assert place.state().holds(5)
    (place.home / "fuse.timer").unlink()
    place.look_again()
    assert place.state().seq == 5
    wait_until(lambda: place.times("destroyed") == 1)


def test_an_older_line_in_the_file_is_put_right(place: Place) -> None:
    place.arm(5, ends_in_s=600)
    held = (place.home / "fuse.timer").read_text()
    rewrite(place, lambda words: words.__setitem__(0, "4"))
    place.look_again()
    assert (place.home / "fuse.timer").read_text() == held


def test_a_garbled_file_does_not_refuse_the_next_timer(plain: Place) -> None:
    plain.home.mkdir()
    (plain.home / "fuse.timer").write_text("\x00\x00 garbage")
    state = plain.arm(1, ends_in_s=600)
    assert state is not None
    assert state.holds(1)


def test_a_home_that_holds_the_fuse_of_another_label_is_left_alone(plain: Place) -> None:
    plain.arm(1, ends_in_s=600)
    other = Place(plain.root, plain.home, plain.shell, label="gpurun-another")
    before = (plain.home / "fuse.sh").read_text()
    assert other.arm(2, ends_in_s=0) is None
    assert (plain.home / "fuse.sh").read_text() == before
    assert plain.state().holds(1)


@dataclass(frozen=True)
class Cut:
    """A shell whose connection breaks in the middle of what it is given to read."""

    shell: LocalShell

    def run(
        self,
        command: str,
        *,
        timeout_s: float,
        stdin: str = "",
        on_line: Callable[[str], None] | None = None,
    ) -> Result:
        return self.shell.run(command, timeout_s=timeout_s, stdin=stdin[: len(stdin) // 2])

    def put(self, source: Path, target: str) -> None: ...

    def get(self, source: str, target: Path) -> None: ...


def test_half_a_script_is_never_run(plain: Place) -> None:
    def arm_cut(seq: int) -> FuseState | None:
        return fuse.arm(
            Cut(plain.shell),
            str(plain.home),
            timer(seq, 600, 60),
            CLOCK,
            self_destroy=plain.self_destroy,
            terminate=":",
        )

    assert arm_cut(1) is None
    assert list(plain.home.iterdir()) == []
    plain.arm(1, ends_in_s=600)
    state = arm_cut(2)  # by the whole script that is there
    assert state is not None
    assert state.holds(2)


@pytest.mark.parametrize(
    "output",
    [
        "",
        "no such file",
        "gpurun-fuse",
        "gpurun-fuse 1 2 3",
        "gpurun-fuse x 2 3 armed 1",
        "gpurun-fuse 1 2 3 armed 1 7",
        f"gpurun-fuse 1 {'9' * 30} 3 armed 1",
        "gpurun-fuse 4 253402300799 0 armed 1",
        "gpurun-fuse 9223372036854775807 1795262400 0 armed 1",
        "gpurun-fuse -1 1795262400 0 armed 1",
    ],
)
def test_an_answer_that_is_not_understood_is_no_guard(output: str) -> None:
    assert fuse.read_back(Says(Result(0, output)), "home") is None
