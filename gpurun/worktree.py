"""Git work trees: what git tracks in a folder, and one commit of somebody's repository."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpurun.errors import UsageError

GIT_TIMEOUT_S = 300


def cloned(url: str, commit: str, clones: Path) -> Path:
    """The work tree of one commit, fetched once; a half-made clone is never seen."""
    folder = clones / hashlib.sha256(f"{url} {commit}".encode()).hexdigest()[:20]
    if folder.is_dir():
        return folder
    clones.mkdir(mode=0o700, parents=True, exist_ok=True)
    half = Path(tempfile.mkdtemp(dir=clones))
    try:
        _git(half, ["init", "--quiet"])
        try:
            _git(half, ["fetch", "--quiet", "--depth=1", url, commit])
        except GitFailed:  # a server that gives out no single commits
            _git(half, ["fetch", "--quiet", url, "+refs/*:refs/from/*"])
        _git(half, ["checkout", "--quiet", "--detach", commit])
        half.rename(folder)
    except GitFailed as error:
        raise UsageError(f"ship: {url} at {commit[:12]} cannot be had from git: {error}") from error
    except OSError:
        if not folder.is_dir():  # else another process made it meanwhile
            raise
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return folder


class GitFailed(Exception):
    """Git's own last words."""


def files(folder: Path, *which: str) -> set[str] | None:
    """Names that `git ls-files` gives, relative to the folder; None where git cannot say."""
    try:
        return set(_git(folder, ["ls-files", "-z", *which]).split("\0")) - {""}
    except GitFailed:
        return None


@dataclass(frozen=True, slots=True)
class State:
    """Of what git tracks in a folder."""

    commit: str
    dirty: bool  # it is not what the commit has


def state(folder: Path) -> State | None:
    """None where git cannot say."""
    try:
        commit = _git(folder, ["rev-parse", "--verify", "HEAD"]).strip()
        return State(commit, bool(_git(folder, ["status", "--porcelain", "-uno", "."])))
    except GitFailed:
        return None


def _git(folder: Path, arguments: Iterable[str]) -> str:
    """Git without prompts, hooks or a repository named by the environment."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environ |= {"GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": "ssh -oBatchMode=yes"}
    safe = ["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"]
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *safe, *arguments],
            env=environ,
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
        )
    except FileNotFoundError as error:
        raise GitFailed("git is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise GitFailed(f"no answer in {GIT_TIMEOUT_S} s") from error
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise GitFailed(words[-1] if words else f"git exited {done.returncode}")
    return os.fsdecode(done.stdout)
