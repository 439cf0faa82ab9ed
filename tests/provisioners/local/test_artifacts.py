"""What is left of a local box: all that nobody fetched, and nothing else."""

import os
from pathlib import Path

import pytest

from gpurun.clock import Deadline
from provisioners import removal
from provisioners.local import Local
from tests.contract import LABEL
from tests.provisioners.local.boxes import (
    CLOCK,
    RATE,
    as_nobody,
    fill,
    rent,
    saved,
)


def note_collected(root: Path, *paths: str) -> None:
    lines = [
        f"{(root / path).stat().st_mtime_ns} {(root / path).stat().st_size} {path}\n"
        for path in paths
    ]
    (root / ".gpurun" / "collected.txt").write_text("".join(lines))


def emptied(trash: Path) -> bool:
    """Within ten seconds: nobody waits for it but this."""
    deadline = Deadline(10)
    while not deadline.passed():
        if not any(trash.iterdir()):
            return True
    return False


def test_what_was_not_collected_is_saved(any_cloud: Local) -> None:
    fill(rent(any_cloud), r"checkpoints\nlogs/*\n")
    any_cloud.destroy(LABEL)
    assert saved(any_cloud) == ["checkpoints/a/step_1", "checkpoints/b", "logs/log"]
    assert (any_cloud.salvage(LABEL) / "checkpoints/b").read_text() == "2\n"


def test_what_was_collected_is_removed_with_the_box(any_cloud: Local, tmp_path: Path) -> None:
    root = fill(rent(any_cloud), r"checkpoints\nlogs\n")
    note_collected(root, "checkpoints/a/step_1", "checkpoints/b", "logs/log")
    any_cloud.destroy(LABEL)
    assert saved(any_cloud) == []
    assert not (tmp_path / "salvage").exists()
    assert emptied(tmp_path / "boxes" / ".trash")


def test_what_changed_after_it_was_collected_is_saved(any_cloud: Local) -> None:
    root = fill(rent(any_cloud), "checkpoints")
    note_collected(root, "checkpoints/a/step_1", "checkpoints/b")
    now = (root / "checkpoints/b").stat()
    (root / "checkpoints/b").write_text("3\n")  # the same size
    os.utime(root / "checkpoints/b", ns=(now.st_atime_ns, now.st_mtime_ns + 1))
    any_cloud.destroy(LABEL)
    assert saved(any_cloud) == ["checkpoints/b"]


def test_a_torn_list_of_collected_files_saves_too_much(any_cloud: Local) -> None:
    root = fill(rent(any_cloud), "logs")
    (root / ".gpurun" / "collected.txt").write_text("17")
    any_cloud.destroy(LABEL)
    assert saved(any_cloud) == ["logs/log"]


@pytest.mark.parametrize("glob", ["../../bystander", "{}/bystander", "logs/../../../bystander"])
def test_a_glob_that_leaves_the_box_moves_nothing_out_there(
    any_cloud: Local, tmp_path: Path, glob: str
) -> None:
    (tmp_path / "boxes").mkdir()
    (tmp_path / "boxes" / "bystander").write_text("here")
    fill(rent(any_cloud), glob.format(tmp_path / "boxes"))
    any_cloud.destroy(LABEL)
    assert (tmp_path / "boxes" / "bystander").read_text() == "here"


def test_a_box_that_was_made_a_symlink_is_not_followed(any_cloud: Local, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious")
    rent(any_cloud).run(f"cd ../..; mv {LABEL} old; ln -s {outside} {LABEL}", timeout_s=10)
    any_cloud.destroy(LABEL)
    assert (outside / "file").read_text() == "precious"
    assert not (tmp_path / "boxes" / LABEL).is_symlink()


@pytest.mark.parametrize("glob", ["./checkpoints/", "**/step_*", "./**/step_*"])
def test_globs_are_read_as_users_write_them(any_cloud: Local, glob: str) -> None:
    fill(rent(any_cloud), glob)
    any_cloud.destroy(LABEL)
    assert "checkpoints/a/step_1" in saved(any_cloud)


def test_symlinks_out_of_the_box_are_not_followed(any_cloud: Local, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "file").write_text("precious")
    outside.chmod(0o500)
    shell = rent(any_cloud)
    shell.run(
        f"ln -s {outside} checkpoints; ln -s {outside}/deep/file link; mkdir d;"
        f" ln -s {outside} d/in; printf 'checkpoints\\nlink\\nd\\n' > .gpurun/collect.txt",
        timeout_s=10,
    )
    any_cloud.destroy(LABEL)
    assert (outside / "deep" / "file").read_text() == "precious"
    assert outside.stat().st_mode & 0o777 == 0o500
    assert saved(any_cloud) == []
    assert any_cloud.instances() == []


def test_a_root_that_was_made_a_symlink_is_not_followed(any_cloud: Local, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / ".gpurun").mkdir(parents=True)
    (outside / ".gpurun" / "collect.txt").write_text("*")
    (outside / "file").write_text("precious")
    rent(any_cloud).run(f"cd ..; mv root old; ln -s {outside} root", timeout_s=10)
    any_cloud.destroy(LABEL)
    assert (outside / "file").read_text() == "precious"
    assert any_cloud.instances() == []


def test_what_a_link_inside_the_box_names_is_saved(any_cloud: Local) -> None:
    shell = rent(any_cloud)
    shell.run(
        "mkdir -p real/a; echo x > real/a/x; ln -s real checkpoints; ln -s . real/loop;"
        " echo checkpoints > .gpurun/collect.txt",
        timeout_s=10,
    )
    any_cloud.destroy(LABEL)
    assert saved(any_cloud) == ["real/a/x"]


def test_directories_that_forbid_it_are_removed_and_their_artifacts_saved() -> None:
    def check(state_dir: Path) -> None:
        cloud = Local(state_dir, RATE, CLOCK)
        fill(rent(cloud), "checkpoints").joinpath("checkpoints/a").chmod(0)
        shell = cloud.shell(LABEL)
        assert shell.run("chmod 500 other logs . ; chmod 0 .gpurun", timeout_s=10).ok
        cloud.destroy(LABEL)
        assert cloud.instances() == []
        assert saved(cloud) == ["checkpoints/a/step_1", "checkpoints/b"]
        trash = state_dir / "boxes" / ".trash"
        for leftover in trash.iterdir():  # nobody cannot start the python of these tests
            removal.remove(leftover)
        assert list(trash.iterdir()) == []

    as_nobody(check)
