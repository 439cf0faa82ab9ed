"""What is fetched from a box, whatever its files are like and whatever it says of them."""

import os
from pathlib import Path

import pytest

from gpurun.engine.boxfiles import fetch, matching
from gpurun.errors import PhaseFailed
from gpurun.shell.local import LocalShell


@pytest.fixture
def shell(tmp_path: Path) -> LocalShell:
    root = tmp_path / "box"
    (root / "out").mkdir(parents=True)
    return LocalShell(root, env={"PATH": "/usr/local/bin:/usr/bin:/bin"})


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "r"


def fake_python(shell: LocalShell, text: str) -> None:
    python = shell.root / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{text}\n")
    python.chmod(0o755)


def test_a_long_list_is_fetched_whole(shell: LocalShell, into: Path) -> None:
    for number in range(12_000):
        (shell.root / "out" / f"a_file_with_a_rather_long_name_{number:06}.bin").touch()
    assert len(matching(shell, ["out"])) == 12_000
    came, failed = fetch(shell, ["out"], into)
    assert (len(came), failed) == (12_000, [])
    assert len(list((into / "out").iterdir())) == 12_000


def test_a_list_that_was_cut_is_an_error(shell: LocalShell) -> None:
    fake_python(shell, """echo '["out/a", 1, 1, "x"]'""")
    with pytest.raises(PhaseFailed, match="cannot list"):
        matching(shell, ["out"])


@pytest.mark.parametrize("path", ["../elsewhere", "/etc/hostname", "out/../../x", "", "a\\u0000b"])
def test_a_box_that_names_a_file_outside_of_its_root_is_refused(
    shell: LocalShell, into: Path, path: str
) -> None:
    fake_python(shell, f"""printf '%s\\n' '["{path}", 3, 1, "x"]' '{{"rows": 1}}'""")
    with pytest.raises(PhaseFailed, match="outside of its root"):
        fetch(shell, ["out"], into)
    assert not into.parent.exists()


def test_links_are_followed_inside_the_box_only_and_each_file_comes_once(
    shell: LocalShell, into: Path, tmp_path: Path
) -> None:
    out = shell.root / "out"
    (tmp_path / "secret").write_text("of the host")
    (out / "step_40").write_text("40")
    (out / "latest").symlink_to("step_40")
    (out / "loop").symlink_to(".")
    (out / "host").symlink_to(tmp_path)
    (out / "away").symlink_to(tmp_path / "secret")
    (out / "dangling").symlink_to("nothing")
    came, failed = fetch(shell, ["out"], into)
    assert failed == []
    assert [(into / file.path).read_text() for file in came] == ["40"]


def test_names_that_are_odd_are_fetched_as_they_are(shell: LocalShell, into: Path) -> None:
    names = [b"caf\xe9.txt", "naïve\nline".encode(), b'it\'s "x" $(y)', b"n" * 252]
    for name in names:
        (shell.root / "out" / os.fsdecode(name)).write_text("x")
    came, failed = fetch(shell, ["out"], into)
    assert failed == []
    assert sorted(os.fsencode(Path(file.path).name) for file in came) == sorted(names)
    assert all((into / file.path).read_text() == "x" for file in came)


def test_a_file_that_cannot_be_fetched_keeps_no_other(shell: LocalShell, into: Path) -> None:
    (shell.root / "out" / "model.pt").write_text("precious")
    (shell.root / "out" / "log").write_text("newest")
    (into / "out" / "log").mkdir(parents=True)  # where the newest should go, there is a folder
    came, failed = fetch(shell, ["out"], into)
    assert [file.path for file in came] == ["out/model.pt"]
    assert len(failed) == 1
    assert failed[0].startswith("out/log was not fetched")


def test_what_did_not_change_is_not_read_on_the_box_again(shell: LocalShell, into: Path) -> None:
    for name, size in (("large", 3 << 20), ("small", 3)):
        (shell.root / "out" / name).write_bytes(b"x" * size)
    first, _ = fetch(shell, ["out"], into)
    fake_python(shell, 'case "$*" in *hashlib*) exit 9 ;; esac; exec python3 "$@"')
    again, failed = fetch(shell, ["out"], into, known=first)
    assert (set(again), failed) == (set(first), [])
    (shell.root / "out" / "small").write_text("y")
    _, failed = fetch(shell, ["out"], into, known=first)
    assert [text.partition(":")[0] for text in failed] == ["out/small was not fetched"]


def test_what_grows_while_it_is_fetched_arrives_as_it_was_read(
    shell: LocalShell, into: Path
) -> None:
    log = shell.root / "out" / "log"
    log.write_text("one\n")
    came, failed = fetch(shell, ["out"], into)
    log.write_text("one\ntwo\n")
    assert failed == []
    assert [file.size_bytes for file in came] == [4]


def test_what_is_here_already_is_not_fetched_again(shell: LocalShell, into: Path) -> None:
    (shell.root / "out" / "a").write_text("a")
    fetch(shell, ["out"], into)
    before = (into / "out" / "a").stat().st_ino
    fetch(shell, ["out"], into)
    assert (into / "out" / "a").stat().st_ino == before


def test_small_files_come_one_by_one_where_there_is_no_room_to_pack_them(
    shell: LocalShell, into: Path
) -> None:
    """As on a full disk: the archive cannot be written, its files can be read."""
    (shell.root / ".gpurun" / "batch.tar").mkdir(parents=True)
    for name in ("a", "b"):
        (shell.root / "out" / name).write_text(name)
    came, failed = fetch(shell, ["out"], into)
    assert ({file.path for file in came}, failed) == ({"out/a", "out/b"}, [])
    assert sorted(path.read_text() for path in (into / "out").iterdir()) == ["a", "b"]
