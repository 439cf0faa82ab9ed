"""`up`: plan, confirm, run, and follow until the box is proven gone."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpurun.cli.talk import (
    AsJson,
    Interrupted,
    Yes,
    at_terminal,
    consent,
    home,
    need_consent,
    now,
    print_json,
    say,
    settings_for_ending,
    tell,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpurun.cli.follow import Follower
    from gpurun.engine import Plan
    from gpurun.settings import Settings

AFTER_LAUNCH = ("train", "collect", "destroy")


def up(
    recipe: Annotated[str, typer.Argument(help="Path of a recipe, or the name of a bundled one.")],
    provider: Annotated[
        str | None, typer.Option(help="Where to rent; `any`: where it is cheapest.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="USER@HOST:PORT", help="A machine of yours, over SSH.")
    ] = None,
    offer: Annotated[str | None, typer.Option(metavar="ID", help="This offer, no other.")] = None,
    on: Annotated[
        str | None, typer.Option(metavar="RUN", help="On the live box of this run; rent nothing.")
    ] = None,
    max_usd: Annotated[
        str | None, typer.Option(metavar="X", help="Most the run may cost, in USD.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe key.")
    ] = None,
    accept_one_guard: Annotated[
        bool, typer.Option(help="Rent where only the keeper can end the bill.")
    ] = False,
    skip_ladder: Annotated[
        bool, typer.Option(help="Rent without the shorter run that the recipe requires.")
    ] = False,
    yes: Yes = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once the run has begun.")
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="Rent nothing; print the plan and steps.")] = False,
    as_json: AsJson = False,
) -> None:
    """Rent a box and run a recipe on it.

    The plan and its ceiling in dollars are shown first.  The results are fetched, the box is
    destroyed and proven gone.  Leaving with Ctrl-C once training runs does not end the run.
    """
    from gpurun import engine, show
    from gpurun import settings as configuration

    known = configuration.load()
    if accept_one_guard:
        known = known.model_copy(update={"accept_one_guard": True})
    overrides = list(settings or [])
    if max_usd is not None:
        overrides.append(f"budget.max_usd={max_usd}")
    if on is not None:
        _again(on, recipe, overrides, known, detach=detach, as_json=as_json)
        return
    where = _where(provider, host)
    plan = _plan(recipe, where, offer, overrides, known, skip_ladder, ask=not (yes or dry_run))
    if dry_run:
        if as_json:
            print_json(show.plan_document(plan))
        else:
            tell(show.plan_text(plan, steps=True))
        return
    say(show.plan_text(plan, steps=False))
    consent(f"rent it for at most {show.money(plan.ceiling_usd)}", yes)
    run_id = engine.begin(plan, known)
    if detach:
        _say_begun(run_id, as_json)
    else:
        say(f"run {run_id}")
        follow_to_end(run_id, as_json=as_json)


def _again(
    run: str, ref: str, overrides: list[str], settings: Settings, *, detach: bool, as_json: bool
) -> None:
    """Another recipe on a box that stays; exits with the code of that recipe."""
    from gpurun import engine, glance
    from gpurun.cli.follow import Follower
    from gpurun.recipe import find, load
    from gpurun.wiring import kind

    run_id = glance.resolve(home(), run)
    provider = kind(glance.run_document(home(), run_id, now())["provider"])
    recipe = load(ref, provider=provider, overrides=overrides, caps=settings.caps)
    number = engine.again(run_id, recipe, find(ref).absolute().parent, settings)
    if detach:
        _say_begun(run_id, as_json)
        return
    say(f"run {run_id}, recipe {number} on its box")
    document = Follower(home(), run_id).until_task(number)
    if document is None or document["state"] not in ("active", "still_billing"):
        follow_to_end(run_id, as_json=as_json)
        return
    task = document["task"]
    if as_json:
        print_json(document)
    else:
        tell(f"{task['recipe']}: {task['reason']}; the box stays until its timer")
    if task["exit_code"]:
        raise typer.Exit(task["exit_code"])


def follow_to_end(run_id: str, *, as_json: bool) -> None:
    """Show a run until it is over; exits with its code.  Leaving it does not end it."""
    from gpurun.cli.follow import Follower, Hangup, hangup_raises

    follower = Follower(home(), run_id)
    with hangup_raises():
        while True:
            try:
                follower.until_end()
                break
            except KeyboardInterrupt:
                _leave_unless_killed(run_id, follower)
            except Hangup:
                raise Interrupted(_goes_on(follower.document)) from None
    finish(follower.final(), as_json=as_json)


def finish(document: dict[str, Any], *, as_json: bool) -> None:
    """Print what a run has come to, and exit with its code."""
    from gpurun import show

    if as_json:
        print_json(document)
    else:
        tell(show.report_text(document, show.Look.of(sys.stdout)))
        sys.stdout.flush()
        if document["exit_code"] and (why := document["error"] or document["reason"]):
            say(f"gpurun: {why}")
        if document["state"] == "still_billing":
            say(show.status_text({"runs": [document], "orphans": []}, show.Look.of(sys.stderr)))
    if code := document["exit_code"] or 0:
        raise typer.Exit(code)


def _where(provider: str | None, host: str | None) -> str | None:
    from gpurun.errors import UsageError

    if host is not None and provider not in (None, "ssh"):
        raise UsageError(f"--host is for provider ssh, not {provider}: leave one of them out")
    return f"ssh:{host}" if host is not None else provider


def _plan(
    ref: str,
    provider: str | None,
    offer_id: str | None,
    overrides: list[str],
    settings: Settings,
    skip_ladder: bool,
    *,
    ask: bool,
) -> Plan:
    """The cheapest plan among the recipe's providers; mistakes are found before any is asked."""
    from gpurun import engine, glance
    from gpurun.errors import UsageError
    from gpurun.recipe import find, load, missing_secrets
    from gpurun.wiring import kind

    wanted = (
        [provider] if provider else load(ref, overrides=overrides, caps=settings.caps).providers
    )
    recipes = {
        name: load(ref, provider=kind(name), overrides=overrides, caps=settings.caps)
        for name in _asked(wanted, settings)
    }
    values = {**{name: "set" for name in settings.secrets}, **os.environ}
    for recipe in recipes.values():
        if missing := missing_secrets(recipe, values):
            raise UsageError(
                f"recipe {recipe.name} needs secret {', '.join(missing)}: set it in the "
                "environment or in the settings' [secrets]; nothing was rented"
            )
    if ask:
        need_consent("to rent, which may cost money,", yes=False)
    folder = find(ref).absolute().parent
    return engine.plan_among(
        recipes,
        folder,
        offer_id=offer_id,
        settings=settings,
        clock=glance.agreed_clock(home()),
        skip_ladder=skip_ladder,
    )


def _asked(wanted: Sequence[str], settings: Settings) -> list[str]:
    """`any` is every cloud with a key, every host and plugin: this machine only if it is named."""
    from gpurun.errors import UsageError
    from gpurun.wiring import members, names

    everywhere = [each for each in names(settings) if each != "local"] if "any" in wanted else []
    named = [each for name in wanted if name != "any" for each in members(name, settings)]
    if not everywhere and not named:
        if "any" in wanted:
            raise UsageError(
                "there is no provider to ask: store a key with `gpurun auth vast` or `gpurun auth "
                "prime`, list hosts as ssh_hosts in the settings, or take `--provider local`"
            )
        raise UsageError(
            "provider ssh has no hosts: list them as ssh_hosts in the settings, or name one with "
            "`--host user@host:port`"
        )
    return list(dict.fromkeys([*everywhere, *named]))


def _say_begun(run_id: str, as_json: bool) -> None:
    if as_json:
        print_json({"id": run_id})
        return
    tell(run_id)
    say(f"run {run_id} has begun; `gpurun status {run_id}`, `gpurun logs {run_id} -f`")


def _leave_unless_killed(run_id: str, follower: Follower) -> None:
    """Ctrl-C.  Before training there is little to lose: ask.  Returns if the run was killed."""
    document = follower.document
    if document["phase"] in AFTER_LAUNCH or not at_terminal():
        raise Interrupted(_goes_on(document))
    print(f"\nrun {run_id}: kill it or keep it? [kill/KEEP] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() != "kill":
        raise Interrupted(_goes_on(document))
    from gpurun import engine

    killing = engine.kill([run_id], collect=True, settings=settings_for_ending())[run_id]
    if killing.trouble is not None:
        raise killing.trouble
    say(killing.said)


def _goes_on(document: dict[str, Any]) -> str:
    from gpurun import show

    run_id, timer = document["id"], document["timer"]
    armed = (
        f"its timer is armed and ends it by {show.local_time(timer['ends_at'])} at the latest"
        if timer
        else "nothing is rented yet; its timer is armed before anything is"
    )
    return (
        f"run {run_id} goes on in phase {document['phase']}; {armed}. "
        f"`gpurun status {run_id}` shows it, `gpurun kill {run_id}` ends it."
    )
