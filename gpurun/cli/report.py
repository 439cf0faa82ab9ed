"""`report`: the bill of one run, or of all that lived since some time."""

import contextlib
import sys
from typing import Annotated, Any

import typer

from gpurun.cli.talk import AsJson, home, now, print_json, run_ids, tell

AsCsv = Annotated[bool, typer.Option("--csv", help="Print comma separated values.")]


def report(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]", help="Id of a run, or the beginning of it.", autocompletion=run_ids
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Instead of one run, all that lived since: 30d, 12h, 2026-11-01."
        ),
    ] = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """The bill by phase, what was wasted, timers and artifacts.

    With --since: what all runs that lived since then have cost, by recipe, provider and GPU.
    """
    from gpurun.errors import UsageError

    if as_json and as_csv:
        raise UsageError("--json and --csv are two forms of the same: choose one")
    if (run is None) == (since is None):
        raise UsageError(
            "report takes one RUN, or --since TIME such as `gpurun report --since 30d`"
        )
    if run is not None:
        _one(run, as_json=as_json, as_csv=as_csv)
    elif since is not None:
        _many(since, as_json=as_json, as_csv=as_csv)


def _one(run: str, *, as_json: bool, as_csv: bool) -> None:
    from gpurun import glance, show

    run_id = glance.resolve(home(), run)
    document = glance.report_document(home(), run_id, now())
    if any(bill["awaited"] for bill in document["bills"]):
        document = _settled(run_id)
    if as_json:
        print_json(document)
    elif as_csv:
        tell(show.report_csv(document))
    else:
        what = f"{document['recipe']} on {document['provider']}"
        tell(f"{document['id']}: {what}, {_outcome(document)}")
        tell(show.report_text(document, show.Look.of(sys.stdout)))


def _many(since: str, *, as_json: bool, as_csv: bool) -> None:
    from gpurun import glance, show
    from gpurun.cli.moment import ago

    at = now()
    document = glance.since_document(home(), ago(since, at), at)
    if as_json:
        print_json(document)
    elif as_csv:
        tell(show.since_csv(document))
    else:
        tell(show.since_text(document, show.Look.of(sys.stdout)))


def _settled(run_id: str) -> dict[str, Any]:
    """The report, after its providers were asked once what they have charged."""
    from gpurun import glance, settings
    from gpurun.errors import GpurunError
    from gpurun.keeper.settling import settle_run

    with contextlib.suppress(GpurunError):  # settings that cannot be read: shown as accrued
        settle_run(run_id, settings.load())
    return glance.report_document(home(), run_id, now())


def _outcome(document: dict[str, Any]) -> str:
    code = document["exit_code"]
    state = document["state"].replace("_", " ")
    why = f" ({document['reason'].splitlines()[0]})" if document["reason"] else ""
    return f"{state}{why}" + (f", exit {code}" if code is not None else "")
