"""Talking: results on stdout, talk on stderr, one JSON document on request, a question asked."""

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpurun.errors import UsageError

if TYPE_CHECKING:
    from gpurun.settings import Settings

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document (docs/json.md).")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
OneRun = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Id of a run, or the beginning of it.",
        autocompletion=lambda incomplete: run_ids(incomplete),
    ),
]


class Interrupted(Exception):
    """The user left; what is running goes on (exit 130)."""


def say(text: str) -> None:
    """Talk, which no pipe should carry on."""
    print(text, file=sys.stderr, flush=True)


def tell(text: str) -> None:
    """The result."""
    print(text)


def print_json(document: Mapping[str, Any]) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=not _speaks_unicode(), allow_nan=False))


def _speaks_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def error_document(kind: str, message: str, exit_code: int) -> dict[str, Any]:
    return {"error": {"class": kind, "message": message, "exit_code": exit_code}}


def home() -> Path:
    from gpurun.places import state_dir

    return state_dir()


def now() -> datetime:
    from gpurun.glance import agreed_clock

    return agreed_clock(home()).now()


def settings_for_ending() -> "Settings":
    """As far as they can be used; what is wrong with them is told, and keeps no box alive."""
    from gpurun.settings import load_for_ending

    settings, trouble = load_for_ending()
    if trouble:
        say(f"gpurun: {trouble}")
    return settings


def at_terminal() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def need_consent(what: str, yes: bool) -> None:
    """Without a terminal nobody can be asked: then what costs or destroys takes --yes."""
    if not yes and not at_terminal():
        raise UsageError(f"{what} takes --yes where nobody can be asked; nothing was done")


def consent(what: str, yes: bool) -> None:
    """Ask, unless it was answered beforehand; anything but yes is no."""
    need_consent(f"to {what}", yes)
    if yes:
        return
    print(f"{what[0].upper()}{what[1:]}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("not confirmed; nothing was done")


def run_ids(incomplete: str) -> list[str]:
    """For completion in the shell."""
    from gpurun import glance

    documents = glance.status(home(), now(), every=True)["runs"]
    return [doc["id"] for doc in documents if doc["id"].startswith(incomplete)]
