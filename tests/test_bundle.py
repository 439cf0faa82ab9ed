"""The cargo: the same from wherever gpurun runs, and never a key in it."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gpurun.bundle import ARTIFACTS_IGNORED, Cargo, cargo
from gpurun.errors import UsageError
from gpurun.recipe import Recipe, load

ROOT = Path(__file__).resolve().parent.parent
KEYS = (".env", ".env.local", "key.pem", "id_rsa", ".ssh/config", ".aws/credentials", ".netrc")


def recipe(ship: list[dict[str, Any]], **keys: Any) -> Recipe:
    return Recipe.from_dict({**load("smoke").to_dict(), "ship": ship, **keys})


def packed(folder: Path, where: Path, **keys: Any) -> Cargo:
    return cargo(recipe([{"from": str(folder), "to": "app"}], **keys), where, where / "clones")


def names(found: Cargo) -> list[str]:
    return [item.name for item in found.files if item.name.startswith("app/")]


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def work_tree(folder: Path, files: dict[str, str]) -> Path:
    write(folder, files)
    git(folder, "init", "--quiet")
    return folder


# remote/


def test_the_cargo_is_remote_s_source_files_sorted_by_name() -> None:
    found = cargo(load("smoke"))
    assert [item.name for item in found.files] == sorted(item.name for item in found.files)
    assert all(item.name.startswith("remote/") for item in found.files)
    suffixes = {".py", ".cpp", ".h", ".yaml", ".json", ".txt"}
    assert {Path(item.name).suffix for item in found.files} <= suffixes
    needed = {"remote/pretrain.py", "remote/models/cpu/mlp.cpp", "remote/models/cpu/vectors.h"}
    assert needed <= {item.name for item in found.files}
    assert found.total_bytes == sum(len(item.opened().read()) for item in found.files)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of what git tracks here, with things planted that must not travel."""
    folder = tmp_path_factory.mktemp("checkout") / "gpurun-checkout"
    tracked = git(ROOT, "ls-files", "-z").split("\0")
    for name in filter(None, tracked):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    planted = [".env", "data/arc.json", "model.pem", "__pycache__/x.py", ".hidden/x.py"]
    write(folder / "remote", dict.fromkeys(planted, "planted"))
    return folder


def digest_seen_from(folder: Path) -> str:
    """The digest that a gpurun imported from this folder computes."""
    program = (
        "import gpurun, sys; from gpurun.bundle import cargo; from gpurun.recipe import load\n"
        "assert gpurun.__file__.startswith(sys.argv[1]), gpurun.__file__\n"
        "found = cargo(load('smoke')); print(found.digest, len(found.files))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def test_checkout_wheel_and_sdist_have_the_same_digest(checkout: Path, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*build, str(checkout)], check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "wheel")
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as sdist:
        sdist.extractall(tmp_path / "sdist", filter="data")
    (unpacked,) = (tmp_path / "sdist").iterdir()
    seen = {digest_seen_from(folder) for folder in (checkout, tmp_path / "wheel", unpacked)}
    assert len(seen) == 1


def test_the_box_is_told_the_commit_and_whether_the_code_is_that_of_it(
    checkout: Path, tmp_path: Path
) -> None:
    """By the very module that writes it into checkpoints, from an unpacked cargo without git."""
    folder = tmp_path / "checkout"
    shutil.copytree(checkout, folder)
    git(folder, "commit", "--quiet", "--message", "one")
    commit, clean = git(folder, "rev-parse", "HEAD"), digest_seen_from(folder)
    assert on_a_box(folder, tmp_path / "clean") == {"commit": commit, "dirty": False}
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "two")
    assert digest_seen_from(folder) == clean
    commit = git(folder, "rev-parse", "HEAD")
    with (folder / "remote" / "speed.py").open("a") as module:
        module.write("# edited\n")
    assert on_a_box(folder, tmp_path / "dirty") == {"commit": commit, "dirty": True}
    assert digest_seen_from(folder).split()[0] != clean.split()[0]


def on_a_box(checkout: Path, box: Path) -> dict[str, object]:
    """What a checkpoint's provenance says there."""
    pack = (
        "import pathlib, sys; from gpurun import snapshot; from gpurun.bundle import cargo\n"
        "from gpurun.recipe import load\n"
        "kept = pathlib.Path(sys.argv[1]); snapshot.keep(cargo(load('smoke')), kept)\n"
        "snapshot.kept(kept).write_tar(kept / 'cargo.tar.gz')"
    )
    told = (
        "import json; from remote.provenance import provenance\n"
        "print(json.dumps(provenance('', {}, '')['git']))"
    )
    environ = {k: v for k, v in os.environ.items() if not k.startswith("GPURUN_")}
    for program, folder in ((pack, checkout), (told, box)):
        done = subprocess.run(
            [sys.executable, "-c", program, str(box)],
            cwd=folder,
            env={**environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
            check=True,
            capture_output=True,
            text=True,
        )
        if program == pack:
            with tarfile.open(box / "cargo.tar.gz") as packed_here:
                packed_here.extractall(box, filter="data")
    return dict(json.loads(done.stdout))


def test_a_source_file_that_git_does_not_track_stays_and_is_named(
    checkout: Path, tmp_path: Path
) -> None:
    before = digest_seen_from(checkout)
    stray = checkout / "remote" / "keys.json"
    stray.write_text("{}")
    try:
        assert digest_seen_from(checkout) == before
    finally:
        stray.unlink()


def test_the_digest_changes_with_a_name_and_with_a_content(tmp_path: Path) -> None:
    digests = {
        packed(write(tmp_path / str(i), files), tmp_path).digest
        for i, files in enumerate([{"a.py": "1"}, {"b.py": "1"}, {"a.py": "2"}, {"a.py": "1"}])
    }
    assert len(digests) == 3


def test_the_manifest_is_what_sha256sum_checks(tmp_path: Path) -> None:
    found = packed(write(tmp_path / "code", {"a.py": "1", "sub/b c.py": "2"}), tmp_path)
    found.write_tar(tmp_path / "cargo.tar.gz")
    with tarfile.open(tmp_path / "cargo.tar.gz") as tar:
        tar.extractall(tmp_path / "box", filter="data")
    (tmp_path / "box" / "MANIFEST").write_text(found.manifest)
    check = ["sha256sum", "--check", "--strict", "--quiet", "MANIFEST"]
    subprocess.run(check, cwd=tmp_path / "box", check=True)


def test_the_tar_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    code = write(tmp_path / "code", {"a.py": "1", "run.sh": "true"})
    (code / "run.sh").chmod(0o755)
    packed(code, tmp_path).write_tar(tmp_path / "one.tar.gz")
    os.utime(code / "a.py", (1, 1))
    packed(code, tmp_path).write_tar(tmp_path / "two.tar.gz")
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "one.tar.gz") as tar:
        modes = {entry.name: entry.mode for entry in tar if entry.name.startswith("app/")}
        assert {(entry.mtime, entry.uid, entry.gid, entry.uname) for entry in tar} == {
            (0, 0, 0, "")
        }
    assert modes == {"app/a.py": 0o644, "app/run.sh": 0o755}


def test_a_file_changed_while_it_is_packed_is_noticed(tmp_path: Path) -> None:
    code = write(tmp_path / "code", {"a.py": "1"})
    found = packed(code, tmp_path)
    (code / "a.py").write_text("2")
    with pytest.raises(UsageError, match="changed while it was packed"):
        found.write_tar(tmp_path / "cargo.tar.gz")
    assert not list(tmp_path.glob("cargo*"))


# User code.


def test_keys_and_caches_never_travel_and_are_named(tmp_path: Path) -> None:
    junk = [*KEYS, "sub/.env", "__pycache__/a.pyc", ".venv/bin/python"]
    found = packed(write(tmp_path / "code", {"a.py": "", **dict.fromkeys(junk, "x")}), tmp_path)
    assert names(found) == ["app/a.py"]
    left = [line.partition(":")[0] for line in found.left_behind]
    assert sorted(left) == sorted(f"app/{name}" for name in (*KEYS, "sub/.env"))


def test_keys_do_not_travel_even_when_git_tracks_them(tmp_path: Path) -> None:
    code = work_tree(tmp_path / "code", {"a.py": "", ".env": "KEY=1", "deep/id_ed25519": "x"})
    git(code, "add", "--all", "--force")
    assert names(packed(code, tmp_path)) == ["app/a.py"]


def test_gitignore_is_honoured_in_a_work_tree(tmp_path: Path) -> None:
    files = {"a.py": "", "new.py": "", "out/big.bin": "x", "sub/b.py": "", ".gitignore": "out/\n"}
    code = work_tree(tmp_path / "code", files)
    git(code, "add", "a.py")
    assert names(packed(code, tmp_path)) == [
        "app/.gitignore",
        "app/a.py",
        "app/new.py",
        "app/sub/b.py",
    ]
    assert names(packed(code / "sub", tmp_path)) == ["app/b.py"]


def test_a_tracked_file_that_was_deleted_does_not_travel(tmp_path: Path) -> None:
    code = work_tree(tmp_path / "code", {"a.py": "", "b.py": ""})
    git(code, "add", "--all")
    (code / "b.py").unlink()
    assert names(packed(code, tmp_path)) == ["app/a.py"]


def test_a_repository_named_by_the_environment_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = work_tree(tmp_path / "code", {"a.py": ""})
    other = work_tree(tmp_path / "other", {"b.py": ""})
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert names(packed(code, tmp_path)) == ["app/a.py"]


def test_a_work_tree_that_git_cannot_read_is_refused(tmp_path: Path) -> None:
    code = write(tmp_path / "code", {"a.py": "", ".git/HEAD": "nonsense"})
    with pytest.raises(UsageError, match="git cannot list"):
        packed(code, tmp_path)


def test_a_link_out_of_the_folder_does_not_travel(tmp_path: Path) -> None:
    code = write(tmp_path / "code", {"a.py": "1", "keys/.env": "2"})
    write(tmp_path, {"private.txt": "secret"})
    (code / "out.txt").symlink_to(tmp_path / "private.txt")
    (code / "renamed.txt").symlink_to(code / "keys" / ".env")
    (code / "same.py").symlink_to(code / "a.py")
    (code / "gone.py").symlink_to(code / "nothing")
    found = packed(code, tmp_path)
    assert names(found) == ["app/a.py", "app/same.py"]
    assert len(found.left_behind) == 4


def test_a_pipe_is_left_behind_and_not_waited_for(tmp_path: Path) -> None:
    code = write(tmp_path / "code", {"a.py": "1"})
    os.mkfifo(code / "pipe")
    assert packed(code, tmp_path).left_behind == ("app/pipe: not a regular file",)


def test_names_with_spaces_newlines_and_other_letters_travel(tmp_path: Path) -> None:
    code = work_tree(tmp_path / "code", {"a b.py": "1", "é.py": "2", "line\nbreak.py": "3"})
    found = packed(code, tmp_path)
    found.write_tar(tmp_path / "cargo.tar.gz")
    with tarfile.open(tmp_path / "cargo.tar.gz") as tar:
        inside = [name for name in tar.getnames() if name.startswith("app/")]
    assert inside == names(found) == ["app/a b.py", "app/line\nbreak.py", "app/é.py"]


def test_too_much_to_ship_needs_to_be_said(tmp_path: Path) -> None:
    code = write(tmp_path / "code", {"a.bin": ""})
    with (code / "a.bin").open("wb") as file:
        file.truncate(1_500_000)
    with pytest.raises(UsageError, match="over the 1 MB that are left of max_ship_mb"):
        packed(code, tmp_path, max_ship_mb=1)
    assert names(packed(code, tmp_path, max_ship_mb=2)) == ["app/a.bin"]


def test_a_folder_with_nothing_to_ship_is_refused(tmp_path: Path) -> None:
    code = write(tmp_path / "code", {".env": ""})
    with pytest.raises(UsageError, match="holds no file that may travel"):
        packed(code, tmp_path)


def test_two_files_cannot_go_to_one_place(tmp_path: Path) -> None:
    one = write(tmp_path / "one", {"a.py": "1"})
    two = write(tmp_path / "two", {"a.py": "2"})
    ship = [{"from": str(one), "to": "app"}, {"from": str(two), "to": "app"}]
    with pytest.raises(UsageError, match=r"both go to app/a.py"):
        cargo(recipe(ship), tmp_path)


# User code from git.


def shipped_from_git(url: str, commit: str, where: Path) -> Cargo:
    return cargo(recipe([{"git": url, "commit": commit, "to": "app"}]), where, where / "clones")


def test_a_git_repository_ships_at_its_pinned_commit(tmp_path: Path) -> None:
    origin = work_tree(tmp_path / "origin", {"a.py": "old"})
    git(origin, "add", "--all")
    git(origin, "commit", "--quiet", "-m", "one")
    commit = git(origin, "rev-parse", "HEAD")
    write(origin, {"a.py": "new", "b.py": ""})
    git(origin, "add", "--all")
    git(origin, "commit", "--quiet", "-m", "two")
    found = shipped_from_git(f"file://{origin}", commit, tmp_path)
    assert names(found) == ["app/a.py"]
    assert next(item for item in found.files if item.name == "app/a.py").path.read_text() == "old"
    shutil.rmtree(origin)  # what was fetched once is not fetched again
    assert shipped_from_git(f"file://{origin}", commit, tmp_path).digest == found.digest


def test_a_commit_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    origin = work_tree(tmp_path / "origin", {"a.py": ""})
    with pytest.raises(UsageError, match="cannot be had from git") as caught:
        shipped_from_git(f"file://{origin}", "a" * 40, tmp_path)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "clones").iterdir())


def test_what_runs_have_brought_home_does_not_travel_again(tmp_path: Path) -> None:
    """Artifacts land in ./runs, and `ship: from: .` is what people write."""
    write(
        tmp_path,
        {"train.py": "pass", "runs/.gitignore": ARTIFACTS_IGNORED, "runs/abc/model.pt": "big"},
    )
    found = names(cargo(recipe([{"from": ".", "to": "app"}]), tmp_path))
    assert "app/train.py" in found
    assert not [name for name in found if "model.pt" in name]
