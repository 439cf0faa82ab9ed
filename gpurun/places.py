"""Where things lie: the state directory and what is inside it.

Standard library and platformdirs only: `status` reads it before anything heavy is imported.  For
the same reason the directory is named by the environment alone, never by config.toml.
"""

import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from gpurun.errors import UsageError

_RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """GPURUN_HOME, else the platform's own place for state; absolute, not yet made."""
    if home := environ.get("GPURUN_HOME", "").strip():
        return _expanded(home, "GPURUN_HOME")
    return platformdirs.user_state_path("gpurun").absolute()


def config_file(environ: Mapping[str, str] = os.environ) -> Path:
    """GPURUN_CONFIG, else config.toml in the platform's own place for settings."""
    if named := environ.get("GPURUN_CONFIG", "").strip():
        return _expanded(named, "GPURUN_CONFIG")
    return (platformdirs.user_config_path("gpurun") / "config.toml").absolute()


@dataclass(frozen=True, slots=True)
class Places:
    """The state directory: a name for each thing in it."""

    root: Path

    @classmethod
    def here(cls, environ: Mapping[str, str] = os.environ) -> "Places":
        return cls(state_dir(environ))

    @property
    def database(self) -> Path:
        return self.root / "gpurun.db"

    @property
    def blackbox(self) -> Path:
        return self.root / "timers.log"

    @property
    def reserve(self) -> Path:
        """Deleted when the disk is full, so that the journal can still be written."""
        return self.root / "reserve"

    @property
    def keeper_lock(self) -> Path:
        return self.root / "keeper.lock"

    @property
    def keeper_log(self) -> Path:
        return self.root / "keeper.log"

    @property
    def boxes(self) -> Path:
        """The boxes of provider `local`."""
        return self.root / "boxes"

    @property
    def salvage(self) -> Path:
        """Artifacts of boxes that ended before they were collected."""
        return self.root / "salvage"

    @property
    def clones(self) -> Path:
        """User code from git, one folder per URL and commit."""
        return self.root / "clones"

    @property
    def known_hosts(self) -> Path:
        """Host keys of boxes, pinned at first contact: one file for each name of a login."""
        return self.root / "known_hosts"

    def run_dir(self, run_id: str) -> Path:
        return self.root / "runs" / _checked(run_id)

    def cargo(self, run_id: str) -> Path:
        """What a run ships, as it was when it was planned."""
        return self.run_dir(run_id) / "cargo"

    def run_lock(self, run_id: str) -> Path:
        return self.root / "runs" / f"{_checked(run_id)}.lock"

    @property
    def wrong_settings(self) -> Path:
        """What the keeper found wrong with the settings when it last read them."""
        return self.root / "settings.wrong"

    def settings_trouble(self) -> str:
        """As it is kept there; empty when all was well."""
        try:
            return self.wrong_settings.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def keep_settings_trouble(self, trouble: str) -> None:
        """By a keeper, which nobody looks at: for `status` to say."""
        with suppress(OSError):
            if trouble:
                self.wrong_settings.write_text(f"{trouble}\n", encoding="utf-8")
            else:
                self.wrong_settings.unlink(missing_ok=True)

    def free_reserve(self, trouble: str) -> bool:
        """Give the room that was kept back to the journal, if a full disk is the trouble."""
        if "full" not in trouble or not self.reserve.exists():
            return False
        self.reserve.unlink(missing_ok=True)
        return True

    def ensure(self) -> "Places":
        """Make the state directory, closed to others, and prove that it can be written."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.root / "runs").mkdir(mode=0o700, exist_ok=True)
            mode = stat.S_IMODE(self.root.stat().st_mode)
        except OSError as error:
            raise UsageError(
                f"{self.root}: the state directory cannot be made ({error.strerror}): "
                "name one you can write with GPURUN_HOME"
            ) from error
        if mode & 0o022:
            raise UsageError(
                f"{self.root}: others may write in the state directory (mode {mode:o}): "
                f"run `chmod 700 {self.root}`, or name another with GPURUN_HOME"
            )
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise UsageError(
                f"{self.root}: the state directory cannot be written: "
                f"run `chmod 700 {self.root}`, or name another with GPURUN_HOME"
            )
        return self


def _expanded(text: str, variable: str) -> Path:
    if "\0" in text:
        raise UsageError(f"{variable} holds a NUL character: name a directory")
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:  # "~nobody-here"
        raise UsageError(f"{variable} is {text}: no such home directory") from error


def _checked(run_id: str) -> str:
    if not _RUN_ID.fullmatch(run_id):
        raise UsageError(f"{run_id!r} is not a run id: `gpurun status --all` lists them")
    return run_id
