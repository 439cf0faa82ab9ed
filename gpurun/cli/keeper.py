"""`keeper`: the daemon that ends every box whose timer is due."""

from typing import Any

import typer

from gpurun.cli.talk import AsJson, home, now, print_json, say, tell
from gpurun.errors import GpurunError

app = typer.Typer(
    help="The daemon that ends every box whose timer is due.",
    rich_markup_mode=None,
    no_args_is_help=True,
)


@app.command()
def start(as_json: AsJson = False) -> None:
    """Start it, unless it runs."""
    from gpurun import keeper
    from gpurun.places import Places

    places = Places(home()).ensure()
    pid = keeper.start(places)
    if pid is None:
        raise GpurunError(f"the keeper did not start; see {places.keeper_log}")
    if as_json:
        print_json({"pid": pid})
    else:
        tell(f"the keeper runs, pid {pid}")


@app.command()
def stop(as_json: AsJson = False) -> None:
    """Stop it; the next command starts it again while a timer is armed."""
    from gpurun import glance, keeper
    from gpurun.places import Places

    stopped = keeper.stop(Places(home()))
    if glance.needs_keeper(home()):
        say("gpurun: a run is live: only the other guards hold its timer until the keeper is back")
    if as_json:
        print_json({"stopped": stopped})
    else:
        tell("the keeper has stopped" if stopped else "no keeper was running")


@app.command()
def status(as_json: AsJson = False) -> None:
    """Its pid, its beat, and the accounts it can see."""
    from gpurun import glance

    document = glance.keeper_document(home(), now())
    if as_json:
        print_json(document)
        return
    _print(document)


@app.command()
def run() -> None:
    """Run it in the foreground, under a supervisor of your own."""
    from gpurun import keeper
    from gpurun.places import Places

    if code := keeper.run(Places(home())):
        raise typer.Exit(code)


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


def _print(document: dict[str, Any]) -> None:
    from gpurun.show import duration, local_time

    if document["pid"] is None:
        tell("no keeper runs")
    else:
        beat = f", last beat {duration(document['beat_age_s'])} ago" if document["beat_at"] else ""
        tell(f"the keeper runs, pid {document['pid']}, version {document['version']}{beat}")
    for account in document["accounts"]:
        seen = f"listed at {local_time(account['listed_at'])}" if account["auth_ok"] else "NOT SEEN"
        detail = f": {account['detail']}" if account["detail"] else ""
        tell(f"{account['provider']}  {account['account_id']}  {seen}{detail}")
    tell(f"log: {document['log']}")
