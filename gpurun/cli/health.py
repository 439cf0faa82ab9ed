"""`doctor` and `orphans`: asked anew, of this machine and of every provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpurun.cli.talk import AsJson, Yes, consent, home, print_json, run_ids, tell

if TYPE_CHECKING:
    from gpurun.engine import Orphan
    from gpurun.provider import Remark
    from gpurun.settings import Settings


def doctor(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]", help="Look at the box of this run too.", autocompletion=run_ids
        ),
    ] = None,
    recipe: Annotated[
        str, typer.Option(help="Say how many hours of this one the credit pays for.")
    ] = "smoke",
    as_json: AsJson = False,
) -> None:
    """Check machine, journal, keeper, providers, and the accounts at the clouds."""
    from gpurun import engine, glance, show
    from gpurun import settings as configuration
    from gpurun.errors import UsageError

    settings = configuration.load()
    found = [(f.ok, f.what, f.says) for f in engine.doctor(settings)]
    found += [(r.ok, r.what, r.says) for r in _standing(settings, recipe)]
    if run:
        checks = engine.doctor_of_box(glance.resolve(home(), run), settings)
        found += [(f.ok, f.what, f.says) for f in checks]
    fit = all(ok for ok, _, _ in found)
    if as_json:
        print_json(
            {
                "ok": fit,
                "findings": [{"what": what, "says": says, "ok": ok} for ok, what, says in found],
            }
        )
    else:
        for line in show.doctor_lines(found, show.Look.of()):
            tell(line)
    if not fit:
        raise typer.Exit(UsageError.exit_code)


def _standing(settings: Settings, ref: str) -> list[Remark]:
    from gpurun.clock import SystemClock
    from gpurun.engine.rent import need_of
    from gpurun.recipe import load
    from gpurun.standing import standing
    from gpurun.wiring import CLOUDS

    needs = {name: need_of(load(ref, provider=name, caps=settings.caps)) for name in CLOUDS}
    return standing(settings, SystemClock(), needs, ref)


def orphans(
    kill: Annotated[
        str | None, typer.Option(metavar="ID", help="End this instance, which no run of ours is.")
    ] = None,
    provider: Annotated[str | None, typer.Option(help="Ask this one alone.")] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Instances that no timer of gpurun covers."""
    from gpurun import engine
    from gpurun import settings as configuration

    settings = configuration.load()
    found = engine.orphans(settings, [provider] if provider else None)
    if kill is not None:
        _kill(kill, found, yes, as_json)
        return
    documents = [orphan_document(orphan) for orphan in found]
    if as_json:
        print_json({"orphans": documents})
        return
    for orphan in documents:
        rate = f"${orphan['usd_per_hour']}/h" if orphan["usd_per_hour"] else "unknown rate"
        tell(f"{orphan['provider']}  {orphan['instance_id']}  {orphan['label']}  {rate}")
    if not documents:
        tell("no orphans: every instance is covered by a timer, or there is none")


def orphan_document(orphan: Orphan) -> dict[str, Any]:
    rate = orphan.usd_per_hour
    return {
        "provider": orphan.provider,
        "instance_id": orphan.instance_id,
        "label": orphan.label,
        "usd_per_hour": None if rate is None else format(rate, "f"),
    }


def _kill(instance_id: str, found: list[Orphan], yes: bool, as_json: bool) -> None:
    from gpurun import engine
    from gpurun import settings as configuration
    from gpurun.errors import UsageError

    named = [orphan for orphan in found if orphan.instance_id == instance_id]
    if len(named) != 1:
        many = "several providers show" if named else "no provider shows"
        raise UsageError(f"{many} an orphan {instance_id}; `gpurun orphans` lists them")
    consent(f"end {named[0].label} ({named[0].provider} {instance_id}), of no run of ours", yes)
    engine.kill_orphan(named[0].provider, instance_id, configuration.load())
    if as_json:
        print_json({"orphans": [orphan_document(named[0])], "ended": True})
    else:
        tell(f"{named[0].provider} {instance_id} is ended")
