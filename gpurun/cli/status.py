"""`status` and `logs`: what the journal knows; nothing slow is imported for it."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gpurun.cli.talk import (
    AsJson,
    OneRun,
    home,
    now,
    print_json,
    run_ids,
    say,
    settings_for_ending,
    tell,
)

REDRAW_S = 2.0
LOG_POLL_S = 0.3
LIVE = ("active", "still_billing")
LOGS = ("steps", "train")


def status(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]", help="Id of a run, or the beginning of it.", autocompletion=run_ids
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every run, not only the last ten.")] = False,
    watch: Annotated[bool, typer.Option(help="Draw anew every 2 seconds.")] = False,
    refresh: Annotated[bool, typer.Option(help="Ask the providers for orphans.")] = False,
    as_json: AsJson = False,
) -> None:
    """Live runs, and the last ten.

    Phase, progress, dollars spent and projected, and which guard ends each box when.
    """
    from gpurun import glance

    run_id = glance.resolve(home(), run) if run else None
    while True:
        _print_status(run_id, every, refresh, as_json=as_json, watch=watch)
        if not watch:
            return
        from gpurun.clock import SystemClock

        SystemClock().sleep(REDRAW_S)


def logs(
    run: OneRun,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until the run is over.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """What the steps and the training printed."""
    from gpurun import glance
    from gpurun.clock import SystemClock
    from gpurun.places import Places

    run_id = glance.resolve(home(), run)
    folder = Places(home()).run_dir(run_id)
    tails = [_Tail(name, folder / f"{name}.log", as_json=as_json) for name in LOGS]
    while True:
        over = glance.run_document(home(), run_id, now())["state"] not in LIVE
        for tail in tails:
            tail.print_new(last=over or not follow)
        sys.stdout.flush()
        if over or not follow:
            return
        SystemClock().sleep(LOG_POLL_S)


class _Tail:
    """A log file, printed as it grows."""

    def __init__(self, name: str, path: Path, *, as_json: bool) -> None:
        self._name = name
        self._path = path
        self._as_json = as_json
        self._offset = 0
        self._rest = b""

    def print_new(self, *, last: bool) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except OSError:
            return
        self._offset += len(text)
        if not self._as_json:
            sys.stdout.buffer.write(text)
            return
        *lines, self._rest = (self._rest + text).split(b"\n")
        if last and self._rest:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            tell(json.dumps({"log": self._name, "line": line.decode(errors="replace")}))


def _print_status(
    run_id: str | None, every: bool, refresh: bool, *, as_json: bool, watch: bool
) -> None:
    from gpurun import glance, show
    from gpurun.places import Places

    document = glance.status(home(), now(), every=every, run=run_id)
    if refresh:
        document = _refreshed(document)
    if as_json:
        if watch:
            tell(json.dumps(document))
            sys.stdout.flush()
        else:
            print_json(document)
    else:
        look = show.Look.of(sys.stdout)
        text = (
            show.run_text(document["runs"][0], look)
            if run_id and document["runs"]
            else show.status_text(document, look)
        )
        tell(f"\x1b[H\x1b[J{text}" if watch and look.columns else text)
        sys.stdout.flush()
    if trouble := glance.trouble(home()):
        say(f"gpurun: {trouble}")
    if trouble := Places(home()).settings_trouble():
        say(f"gpurun: the keeper is {trouble}")
    for each in document["troubles"]:
        say(f"gpurun: not all of {each['provider']} is shown: {each['why']}")
    if refresh and document["troubles"] and not watch:
        from gpurun.errors import ProviderError

        raise typer.Exit(ProviderError.exit_code)


def _refreshed(document: dict[str, Any]) -> dict[str, Any]:
    """With what every account holds, and what it can spend, now."""
    from gpurun import engine, holdings
    from gpurun.cli.health import trouble_documents
    from gpurun.clock import SystemClock
    from gpurun.glance.money import rate_text
    from gpurun.glance.rows import iso

    survey = engine.orphans(settings_for_ending(), SystemClock())
    for run in document["runs"]:
        lost = run["if_lost"]
        if lost and (wallet := survey.wallets.get((run["provider"], lost["account_id"]))):
            lost |= {
                "wallet_usd": rate_text(wallet.credit_usd),
                "wallet_read_at": iso(wallet.read_at),
            }
    return document | {
        "orphans": [holdings.document(orphan) for orphan in survey.orphans],
        "orphans_checked_at": iso(now()),
        "troubles": trouble_documents(survey),
    }
