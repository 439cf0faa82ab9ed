"""A cargo onto a box: what is not there travels, what is gone is removed, odd names arrive."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.bundle import Cargo, cargo
from gpurun.errors import PhaseFailed
from gpurun.shell.local import LocalShell
from gpurun.ship import NOTE, bring
from tests.test_bundle import names, packed, recipe, write


class Place:
    """User code here, and a box there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.code = folder / "code"
        self.root = folder / "root"
        self.root.mkdir()
        self.archives = folder / "archives"
        self.said: list[str] = []
        self.shell = Counting(self.root, env={"PATH": os.environ["PATH"]})

    def ship(self) -> tuple[int, int]:
        done = bring(self.shell, packed(self.code, self.folder), self.archives, self.said.append)
        return done.files, done.removed

    def there(self) -> list[str]:
        app = self.root / "app"
        found = (Path(top) / name for top, _, files in os.walk(app) for name in files)
        return sorted(path.relative_to(self.root).as_posix() for path in found)


class Counting(LocalShell):
    """Counts round trips; `breaks` is how many transfers break off first."""

    trips = 0
    breaks = 0
    targets: tuple[str, ...] = ()

    def run(self, command: str, **how: object) -> object:  # type: ignore[override]
        self.trips += 1
        return super().run(command, **how)  # type: ignore[arg-type]

    def put(self, source: Path, target: str) -> None:
        self.targets += (target,)
        if self.breaks:
            self.breaks -= 1
            raise OSError("the connection broke")
        super().put(source, target)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    write(made.code, {"a.py": "1", "sub/b.py": "2", "sub/deep/c.py": "3"})
    yield made
    assert not list(made.archives.glob("*")) or made.shell.breaks


def test_everything_arrives_the_first_time_and_nothing_the_second(place: Place) -> None:
    files, removed = place.ship()
    assert (files > 3, removed) == (True, 0)  # remote/ too
    assert place.there() == ["app/a.py", "app/sub/b.py", "app/sub/deep/c.py"]
    assert (place.root / "remote" / "pretrain.py").is_file()
    before = place.shell.trips
    assert place.ship() == (0, 0)
    assert place.shell.trips == before + 1  # one look is all
    assert "on the box already" in place.said[-1]


def test_only_what_changed_travels_and_what_went_is_removed(place: Place) -> None:
    place.ship()
    (place.code / "a.py").write_text("4")
    (place.code / "sub" / "deep" / "c.py").unlink()
    (place.code / "new.py").write_text("5")
    assert place.ship() == (2, 1)
    assert place.there() == ["app/a.py", "app/new.py", "app/sub/b.py"]
    assert (place.root / "app" / "a.py").read_text() == "4"
    assert not (place.root / "app" / "sub" / "deep").exists()


def test_a_file_that_somebody_edited_on_the_box_is_put_right(place: Place) -> None:
    place.ship()
    (place.root / "app" / "sub" / "b.py").write_text("edited")
    (place.root / "app" / "a.py").unlink()
    assert place.ship() == (2, 0)
    assert (place.root / "app" / "sub" / "b.py").read_text() == "2"


def test_files_of_the_training_are_never_removed(place: Place) -> None:
    place.ship()
    write(place.root / "app", {"checkpoints/step_1": "weights", "sub/cache.bin": "x"})
    (place.code / "sub" / "b.py").unlink()
    (place.code / "sub" / "deep" / "c.py").unlink()
    assert place.ship() == (0, 2)
    assert place.there() == ["app/a.py", "app/checkpoints/step_1", "app/sub/cache.bin"]


def test_a_changed_source_of_equal_size_is_not_run_from_its_old_bytecode(place: Place) -> None:
    (place.code / "a.py").write_text("print(1)")
    place.ship()
    run = "cd app && python3 -c 'import a'"
    assert place.shell.run(run, timeout_s=20).output == "1\n"  # type: ignore[attr-defined]
    (place.code / "a.py").write_text("print(2)")
    # A .pyc knows whole seconds: a user's next command is never as fast as this test.
    for file in (place.root / "app" / "__pycache__").iterdir():
        data = file.read_bytes()
        file.write_bytes(
            data[:8] + (int.from_bytes(data[8:12], "little") - 2).to_bytes(4, "little") + data[12:]
        )
    place.ship()
    assert place.shell.run(run, timeout_s=20).output == "2\n"  # type: ignore[attr-defined]


def test_a_mode_alone_travels(place: Place) -> None:
    place.ship()
    (place.code / "a.py").chmod(0o755)
    assert place.ship() == (1, 0)
    assert os.access(place.root / "app" / "a.py", os.X_OK)


def test_odd_names_arrive_and_go(place: Place) -> None:
    odd = ["-rf", "a b", "é.py", "line\nbreak", "tab\tname", "back\\slash", "quote'\"", "* ?"]
    odd += ["$(touch pwned)", "sub/-n", "~", "#x", "=y"]
    write(place.code, dict.fromkeys(odd, "x"))
    place.ship()
    shipped = sorted(f"app/{name}" for name in [*odd, "a.py", "sub/b.py", "sub/deep/c.py"])
    assert place.there() == shipped
    assert place.ship() == (0, 0)
    for name in odd:
        (place.code / name).unlink()
    assert place.ship() == (0, len(odd))
    assert place.there() == ["app/a.py", "app/sub/b.py", "app/sub/deep/c.py"]
    assert not (place.root / "pwned").exists()


def test_a_name_that_is_no_text_arrives(place: Place) -> None:
    raw = os.fsdecode(b"caf\xe9.py")
    (place.code / raw).write_text("x")
    place.ship()
    assert f"app/{raw}" in place.there()
    assert place.ship() == (0, 0)


def test_links_inside_the_code_arrive(place: Place) -> None:
    (place.code / "link.py").symlink_to("a.py")
    (place.code / "folder").symlink_to("sub")
    (place.code / "sub" / "up").symlink_to(place.code / "sub" / "deep")  # absolute
    assert names(packed(place.code, place.folder))[2:4] == ["app/link.py", "app/sub/b.py"]
    place.ship()
    app = place.root / "app"
    assert (app / "link.py").read_text() == "1"
    assert (app / "folder").readlink() == Path("sub")
    assert (app / "sub" / "up").readlink() == Path("deep")
    assert (app / "folder" / "up" / "c.py").read_text() == "3"
    assert place.ship() == (0, 0)
    (place.code / "folder").unlink()
    write(place.code, {"folder/real.py": "now a folder"})
    place.ship()
    assert (app / "folder" / "real.py").read_text() == "now a folder"
    assert (app / "sub" / "b.py").read_text() == "2"


def test_a_folder_that_became_a_file_and_back(place: Place) -> None:
    place.ship()
    for name in ("b.py", "deep/c.py"):
        (place.code / "sub" / name).unlink()
    (place.code / "sub" / "deep").rmdir()
    (place.code / "sub").rmdir()
    (place.code / "sub").write_text("a file")
    place.ship()
    assert (place.root / "app" / "sub").read_text() == "a file"
    (place.code / "sub").unlink()
    write(place.code, {"sub/b.py": "2"})
    place.ship()
    assert (place.root / "app" / "sub" / "b.py").read_text() == "2"


def test_a_cut_transfer_is_taken_up_under_the_same_name(place: Place) -> None:
    """The name is what lets a shell over SSH go on where it stopped."""
    place.shell.breaks = 1
    with pytest.raises(OSError, match="broke"):
        place.ship()
    place.ship()
    first, second = place.shell.targets
    assert first == second
    assert len(place.there()) == 3


def test_a_transfer_that_loses_bytes_is_noticed(place: Place) -> None:
    place.shell.run("mkdir bin", timeout_s=9)
    tar = place.root / "bin" / "tar"
    tar.write_text("#!/bin/sh\nexit 0\n")
    tar.chmod(0o755)
    shell = LocalShell(place.root, env={"PATH": f"{place.root}/bin:{os.environ['PATH']}"})
    with pytest.raises(PhaseFailed, match="files are not on the box as they were sent"):
        bring(shell, packed(place.code, place.folder), place.archives)


def test_a_failing_command_on_the_box_says_which(place: Place) -> None:
    (place.root / "app").write_text("in the way")
    with pytest.raises(PhaseFailed, match="unpack the bundle"):
        place.ship()


def test_what_a_hostile_box_notes_removes_nothing_outside(place: Place) -> None:
    place.ship()
    outside = place.folder / "outside"
    outside.write_text("mine")
    with (place.root / NOTE).open("a") as note:
        for name in (
            "../outside",
            str(outside),
            "app/../../outside",
            ".gpurun/env.sh",
            "%",
            "",
            "x",
        ):
            note.write(f"{'0' * 64} - {name}\n")
        note.write("= = = =\n\x00\xff\n")
    (place.root / ".gpurun" / "env.sh").write_text("kept")
    place.ship()
    assert outside.exists()
    assert (place.root / ".gpurun" / "env.sh").read_text() == "kept"


def test_many_files_are_looked_at_in_one_go(tmp_path: Path) -> None:
    place = Place(tmp_path)
    write(place.code, {f"many/{number:05}.txt": str(number) for number in range(12_000)})
    place.ship()
    (place.code / "many" / "00007.txt").write_text("changed")
    assert place.ship() == (1, 0)


def test_a_cargo_without_user_code_is_the_bundle_alone(tmp_path: Path) -> None:
    found: Cargo = cargo(recipe([]))
    shell = LocalShell(tmp_path, env={"PATH": os.environ["PATH"]})
    assert bring(shell, found, tmp_path / "archives").files == len(found.files)
