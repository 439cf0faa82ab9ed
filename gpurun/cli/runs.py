"""`pull`, `extend`, `resume`: a run that is under way."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpurun.cli.talk import (
    AsJson,
    OneRun,
    Yes,
    consent,
    home,
    need_consent,
    now,
    print_json,
    say,
    tell,
)

if TYPE_CHECKING:
    from gpurun.engine.extending import Extension

LIVE = ("active", "still_billing")


def pull(
    run: OneRun,
    path: Annotated[
        str | None, typer.Argument(metavar="[PATH]", help="On the box; else what it collects.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch files from a live box.

    Of a finished run, say where its artifacts lie.
    """
    from gpurun import glance

    run_id = glance.resolve(home(), run)
    document = glance.final_document(home(), run_id, now())
    if document["state"] in LIVE:
        from gpurun import engine
        from gpurun import settings as configuration

        files = [str(f) for f in engine.pull(run_id, path, configuration.load())]
    else:
        files = [artifact["path"] for artifact in document["artifacts"]]
        say(f"run {run_id} is over: {len(files)} files were collected from it")
    if as_json:
        print_json({"id": run_id, "files": files})
        return
    for file in files:
        tell(file)


def extend(
    run: OneRun,
    by: Annotated[str, typer.Argument(metavar="TIME", help="30m, 1.5h, 90s.")],
    max_usd: Annotated[
        str | None,
        typer.Option(metavar="X", help="Raise what the run may cost at most to this, in USD."),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Move a run's timer later, on every guard.

    Refused when its budget, or a cap of the settings, does not pay for it; --max-usd raises the
    budget of this run.
    """
    from gpurun import engine, glance, show
    from gpurun import settings as configuration
    from gpurun.budget import parse_duration, parse_usd
    from gpurun.glance.money import cents

    seconds = parse_duration(by)
    usd = None if max_usd is None else parse_usd(max_usd)
    need_consent("to extend, which may cost money,", yes)
    run_id, known = glance.resolve(home(), run), configuration.load()
    wanted = engine.extension(run_id, seconds, known, usd)
    consent(
        f"extend run {run_id} by {show.duration(seconds)}: training then stops at "
        f"{show.local_time(wanted.fires_at.isoformat())}, and it may cost up to "
        f"{show.money(cents(wanted.ceiling_usd))} of {_budget(wanted)}",
        yes,
    )
    done = engine.extend(run_id, seconds, known, usd)
    said = (
        f"run {run_id} now stops training at {done.fires_at:%Y-%m-%d %H:%M:%S} UTC, and may cost "
        f"up to {show.money(cents(done.ceiling_usd))} of {_budget(done)}"
    )
    if as_json:
        run_document = glance.run_document(home(), run_id, now())
        print_json({"said": said, "ceiling_usd": str(cents(done.ceiling_usd)), "run": run_document})
    else:
        tell(said)


def _budget(extension: "Extension") -> str:
    from gpurun import show

    now, before = show.money(extension.budget_usd), show.money(extension.budget_before_usd)
    return now if now == before else f"{now}, raised from {before}"


def resume(
    run: OneRun,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once it is taken up.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take up a run that lost its driver.

    Goes on from the journal and follows the run; it never rents a second box.
    """
    from gpurun import glance

    run_id = glance.resolve(home(), run)
    from gpurun import engine
    from gpurun import settings as configuration
    from gpurun.cli.up import follow_to_end

    engine.resume(run_id, configuration.load())
    if not detach:
        follow_to_end(run_id, as_json=as_json)
    elif as_json:
        print_json({"id": run_id})
    else:
        tell(run_id)
