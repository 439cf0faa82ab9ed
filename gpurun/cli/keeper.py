"""`keeper`: the daemon that ends every box whose timer is due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from gpurun.cli.talk import AsJson, home, now, print_json, say, tell
from gpurun.errors import GpurunError

if TYPE_CHECKING:
    from gpurun.keeper.unit import Installed
    from gpurun.places import Places

app = typer.Typer(
    help="The daemon that ends every box whose timer is due.",
    rich_markup_mode=None,
    no_args_is_help=True,
)


def revive() -> bool:
    """Armed timers must have their keeper, whatever command this is; whether it had to be started.

    It is not waited for.
    """
    from gpurun import glance, keeper
    from gpurun.places import Places

    if not glance.needs_keeper(home()):
        return False
    try:
        keeper.summon(Places(home()))
        return True
    except (GpurunError, OSError) as error:
        say(f"gpurun: the keeper cannot be started: {error}")
        return False


@app.command()
def start(as_json: AsJson = False) -> None:
    """Start it, unless it runs."""
    from gpurun import keeper
    from gpurun.places import Places

    places = Places(home()).ensure()
    keeper.require_own_journal(places)
    pid = keeper.start(places)
    if pid is None:
        raise GpurunError(f"the keeper did not start; see {places.keeper_log}")
    if as_json:
        print_json({"pid": pid})
    else:
        tell(f"the keeper runs, pid {pid}")


@app.command()
def stop(as_json: AsJson = False) -> None:
    """Stop it, and forget the keys that `up` gave it; while a timer is armed, the next command
    starts it again.
    """
    from gpurun import glance, keeper
    from gpurun.keeper import handed, unit
    from gpurun.places import Places

    places = Places(home())
    stopped, forgot = keeper.stop(places), handed.forget(places)
    path = unit.unit_path(places)
    if path.exists():
        say(f"gpurun: systemd starts it again: `systemctl --user stop {path.name}` stops it")
    if glance.needs_keeper(home()):
        say("gpurun: a run is live: only the other guards hold its timer until the keeper is back")
        if forgot:
            say(
                "gpurun: a key that `up` found in its shell alone is forgotten: start the keeper "
                "where it is set, or store it by `gpurun auth`"
            )
    if as_json:
        print_json({"stopped": stopped})
    else:
        tell("the keeper has stopped" if stopped else "no keeper was running")


@app.command()
def status(as_json: AsJson = False) -> None:
    """Its last tick, the timers that are next, their guards, and the accounts it can see."""
    from gpurun import glance

    begun = revive()
    document = glance.keeper_document(home(), now())
    if as_json:
        print_json(document)
        return
    if begun:
        say("gpurun: no keeper ran while something is live: it is being started")
    _print(document)


@app.command()
def run() -> None:
    """Run it in the foreground, under a supervisor of your own."""
    from gpurun import keeper
    from gpurun.places import Places

    if code := keeper.run(Places(home())):
        raise typer.Exit(code)


@app.command()
def install(as_json: AsJson = False) -> None:
    """Let systemd start it at boot, and again whenever it ends; elsewhere say how to run it."""
    from gpurun.keeper import unit
    from gpurun.places import Places

    places = Places(home()).ensure()
    made = unit.install(places) if unit.has_systemd() else None
    if as_json:
        print_json(_unit_document(made, places))
    elif made is None:
        for line in _how_to(places):
            tell(line)
    else:
        for line in _installed(made):
            tell(line)


@app.command()
def uninstall(as_json: AsJson = False) -> None:
    """Remove what `keeper install` has made; a keeper goes on while a run is live."""
    from gpurun import glance, keeper
    from gpurun.keeper import unit
    from gpurun.places import Places

    places = Places(home())
    path = unit.uninstall(places)
    pid = keeper.start(places) if path and glance.needs_keeper(home()) else None
    if as_json:
        print_json({"removed": None if path is None else str(path), "pid": pid})
        return
    tell(f"{path} is removed" if path else "nothing was installed")
    if pid is not None:
        tell(f"a run is live: a keeper without the unit goes on, pid {pid}")


@app.command()
def adopt(as_json: AsJson = False) -> None:
    """Take over a moved or restored journal.

    It gets a new owner id; from then on this machine ends its boxes, and may buy again.
    """
    from gpurun import keeper
    from gpurun.places import Places

    owner_id = keeper.adopt(Places(home()))
    if as_json:
        print_json({"owner_id": owner_id})
    else:
        tell(f"this journal is now {owner_id}'s, of this machine; it may buy again")


def _installed(made: Installed) -> list[str]:
    lines = [f"the keeper runs under systemd, pid {made.pid}: {made.path}"]
    if made.pid is None:
        unit = made.path.name
        lines = [f"WANT  {made.path} is enabled, but no keeper runs: `journalctl --user -u {unit}`"]
    if not made.lingers:
        lines.append(
            "WANT  it stops when you log out, and is not started at boot: run "
            "`loginctl enable-linger`"
        )
    for name in made.fleeting:
        lines.append(
            f"WANT  the key of {name} is in this shell's environment alone: this keeper could "
            f"end nothing there. Run `gpurun auth {name}`"
        )
    lines += [f"WANT  {each}" for each in _overlooked(made.overlooked)]
    if made.trouble:
        lines.append(f"WANT  its settings: {made.trouble}")
    return lines


def _overlooked(names: Sequence[str]) -> list[str]:
    from gpurun.places import config_file

    here = "set in this shell alone, and not for this keeper"
    ours = [name for name in names if name.startswith("GPURUN_")]
    others = [name for name in names if name not in ours]
    found = [f"{here}: {', '.join(ours)}: write them in {config_file()}"] if ours else []
    if others:
        found.append(
            f"{here}: {', '.join(others)}: run `systemctl --user import-environment "
            f"{' '.join(others)}`, then `gpurun keeper install` again; a file in "
            "~/.config/environment.d keeps them beyond a reboot"
        )
    return found


def _how_to(places: Places) -> list[str]:
    """For any supervisor."""
    import shlex

    from gpurun.keeper import unit

    told = " ".join(f"{name}={shlex.quote(value)}" for name, value in _told(places).items())
    lacking = ", ".join(unit.overlooked(_told(places)))
    return [
        "no systemd of yours answers here: nothing was installed. Let your supervisor (launchd, "
        "runit, cron's @reboot, a container's init) run this at boot, and again when it ends:",
        f"  env {told} {shlex.join(unit.command())}",
        "It stays in the foreground, ends on SIGTERM, and waits while another keeper runs. Keys "
        "must be in the settings (`gpurun auth`), not in a shell's environment.",
        *([f"Give it what else is set in this shell alone: {lacking}"] if lacking else []),
    ]


def _told(places: Places) -> dict[str, str]:
    from gpurun.keeper import unit

    return unit.environment(places)


def _unit_document(made: Installed | None, places: Places) -> dict[str, Any]:
    from gpurun.keeper import unit

    return {
        "installed": made is not None,
        "unit": None if made is None else str(made.path),
        "pid": None if made is None else made.pid,
        "lingers": None if made is None else made.lingers,
        "keys_in_shell_only": [] if made is None else list(made.fleeting),
        "settings_in_shell_only": [] if made is None else list(made.overlooked),
        "trouble": (made.trouble if made else None) or None,
        "command": unit.command(),
        "environment": _told(places),
    }


def _print(document: dict[str, Any]) -> None:
    from gpurun.show import duration, local_time

    if document["pid"] is None:
        tell("no keeper runs")
    else:
        beat = f", last beat {duration(document['beat_age_s'])} ago" if document["beat_at"] else ""
        tell(f"the keeper runs, pid {document['pid']}, version {document['version']}{beat}")
    for timer in document["next_timers"]:
        holding = ", ".join(timer["guards"]) or "NO GUARD"
        tell(
            f"{timer['run']}  {timer['kind']} timer fires {local_time(timer['fires_at'])}, "
            f"the box goes {local_time(timer['ends_at'])}: {holding}"
        )
    if (more := document["live_runs"] - len(document["next_timers"])) > 0:
        tell(f"and {more} more live runs")
    for account in document["accounts"]:
        seen = f"listed at {local_time(account['listed_at'])}" if account["auth_ok"] else "NOT SEEN"
        detail = f": {account['detail']}" if account["detail"] else ""
        tell(f"{account['provider']}  {account['account_id']}  {seen}{detail}")
    if document["notify"]["trouble"]:
        tell(f"WANT  a message was not taken: {document['notify']['trouble']}")
    elif document["notify"]["sent_at"]:
        tell(f"last message sent {local_time(document['notify']['sent_at'])}")
    tell(f"log: {document['log']}")
