"""Whether a run or an evaluation can write what it finds, tried before it begins."""

import contextlib
import tempfile
from pathlib import Path

from remote.overrides import ConfigError
from remote.ranks import Ranks


def require_a_place(path: str, ranks: Ranks) -> None:
    """That the first rank can write in this `checkpoint_path`; what that takes is undone.

    Raises ConfigError, on every rank.
    """
    problem = ""
    if ranks.first:
        try:
            _write_a_file_in(Path(path))
        except OSError as error:
            problem = f"{type(error).__name__}: {error}"
    if problem := ranks.gather(problem)[0]:
        raise ConfigError(
            f"checkpoint_path={path}: nothing can be written there ({problem})."
            " Name a folder that you may write in"
        )


def _write_a_file_in(place: Path) -> None:
    made = [path for path in (place, *place.parents) if not path.exists()]
    try:
        place.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=place).close()
    finally:
        for path in made:
            with contextlib.suppress(OSError):  # it was not made, or another one writes there
                path.rmdir()
