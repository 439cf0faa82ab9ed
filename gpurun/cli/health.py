"""`doctor` and `orphans`: asked anew, of this machine and of every provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpurun.cli.talk import (
    AsJson,
    Interrupted,
    Yes,
    consent,
    home,
    print_json,
    run_ids,
    say,
    settings_for_ending,
    tell,
)
from gpurun.errors import ProviderError, StillBilling, UsageError
from gpurun.places import config_file

if TYPE_CHECKING:
    from gpurun.engine import Survey
    from gpurun.holdings import Orphan
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
    from gpurun import engine, glance, notify, show
    from gpurun import settings as configuration

    settings, trouble = configuration.load_for_ending()
    found = [(not trouble, "settings", trouble or str(config_file()))]
    found += [(f.ok, f.what, f.says) for f in engine.doctor(settings)]
    told, says = notify.standing(len(settings.notify), settings.notify_on)
    found.append((told, "notify", says))
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
    from gpurun.engine.needs import need_of
    from gpurun.recipe import load
    from gpurun.standing import standing
    from gpurun.wiring import CLOUDS

    needs = {name: need_of(load(ref, provider=name, caps=settings.caps)) for name in CLOUDS}
    return standing(settings, SystemClock(), needs, ref)


def orphans(
    kill: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="End this one, and prove it gone; can be repeated."),
    ] = None,
    provider: Annotated[str | None, typer.Option(help="Ask this one alone.")] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """What the accounts hold that no timer of gpurun here covers, with its price.

    Boxes in any state, also stopped ones, and disks that bill on; all providers are asked at once.
    Exits with 4 when one of them could not be asked.
    """
    from gpurun import engine, holdings, show
    from gpurun.clock import SystemClock
    from gpurun.wiring import members, provisioner

    settings, clock = settings_for_ending(), SystemClock()
    asked = members(provider, settings) if provider not in (None, "any") else None
    for name in asked or ():
        provisioner(name, settings, clock)  # one that is named must be there, and have a key
    survey = engine.orphans(settings, clock, asked)
    if kill:
        _kill(kill, survey, settings, yes=yes, as_json=as_json)
        return
    documents = [holdings.document(orphan) for orphan in survey.orphans]
    if as_json:
        print_json({"orphans": documents, "troubles": trouble_documents(survey)})
    else:
        for line in show.orphans_lines(documents, show.Look.of()):
            tell(line)
        if not documents and not survey.troubles:
            tell("no orphans: every instance is covered by a timer, or there is none")
    say_troubles(survey)
    if survey.troubles:
        raise typer.Exit(ProviderError.exit_code)


def trouble_documents(survey: Survey) -> list[dict[str, str]]:
    return [{"provider": each.provider, "why": each.why} for each in survey.troubles]


def say_troubles(survey: Survey) -> None:
    for each in survey.troubles:
        say(f"gpurun: not all of {each.provider} is shown: {each.why}")


def _kill(ids: list[str], survey: Survey, settings: Settings, *, yes: bool, as_json: bool) -> None:
    from gpurun import engine, holdings
    from gpurun.clock import SystemClock

    say_troubles(survey)
    named = [_named(each, survey) for each in dict.fromkeys(ids)]
    consent(f"end {', '.join(map(_described, named))}; no run of ours has it", yes)
    unproven: list[StillBilling] = []
    for orphan in named:
        try:
            engine.end_orphan(orphan, settings, SystemClock(), lambda line: say(f"gpurun: {line}"))
        except StillBilling as error:
            unproven.append(error)
        except KeyboardInterrupt:
            raise Interrupted(
                f"the end of {orphan.row.provider} {orphan.row.id} was asked for, and is not "
                "proven; `gpurun orphans` shows what is still there"
            ) from None
    if unproven:
        raise StillBilling(" ".join(map(str, unproven)))
    if as_json:
        documents = [holdings.document(orphan) for orphan in named]
        print_json({"orphans": documents, "troubles": trouble_documents(survey), "ended": True})
    else:
        for orphan in named:
            tell(f"{orphan.row.provider} {orphan.row.id} is ended: proven gone")


def _named(instance_id: str, survey: Survey) -> Orphan:
    """By its id alone, and one only."""
    found = [orphan for orphan in survey.orphans if orphan.row.id == instance_id]
    if len(found) == 1:
        return found[0]
    if found:
        which = ", ".join(orphan.row.provider for orphan in found)
        raise UsageError(
            f"several providers show an orphan {instance_id}: name one of {which} with --provider"
        )
    if survey.troubles:
        raise ProviderError(
            f"no orphan {instance_id} is shown, but not everybody could be asked: nothing was done"
        )
    raise UsageError(
        f"no provider shows an orphan {instance_id}; `gpurun orphans` lists them, and a box of a "
        "run is ended by `gpurun kill RUN`"
    )


def _described(orphan: Orphan) -> str:
    from gpurun.show.text import printable

    row = orphan.row
    label = f" {printable(row.label)}" if row.label not in ("", row.id) else ""
    rate = f"${row.usd_per_hour}/h" if row.usd_per_hour is not None else "unknown rate"
    return f"{row.provider} {row.id}{label} ({row.state.value}, {rate})"
