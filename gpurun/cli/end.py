"""`kill`: collect, destroy, prove; of what is gone it says so, and succeeds."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpurun.cli.talk import (
    AsJson,
    Interrupted,
    Yes,
    consent,
    home,
    now,
    print_json,
    run_ids,
    say,
    settings_for_ending,
)
from gpurun.errors import StillBilling, UsageError
from gpurun.model import RunState

if TYPE_CHECKING:
    from gpurun.engine import Killing

LIVE = ("active", "still_billing")


def kill(
    run: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...", help="Ids, or their beginnings.", autocompletion=run_ids
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every live run.")] = False,
    yes: Yes = False,
    no_collect: Annotated[
        bool, typer.Option("--no-collect", help="Destroy at once, fetch nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """End runs: collect, destroy, prove.

    The training gets SIGTERM and its grace to save; what it left is fetched; the box is destroyed
    and proven gone.  Of a run that is over it says so.
    """
    from gpurun import glance

    if bool(run) == every:
        raise UsageError("name the runs to kill, or --all; `gpurun status` lists them")
    ids = [glance.resolve(home(), prefix) for prefix in run or ()]
    if every:
        ids = [d["id"] for d in glance.status(home(), now())["runs"] if d["state"] in LIVE]
    documents = [glance.run_document(home(), run_id, now()) for run_id in dict.fromkeys(ids)]
    live = [document["id"] for document in documents if document["state"] in LIVE]
    if live:
        consent(f"end {_count(len(live))} ({', '.join(live)})", yes)
    results = {d["id"]: _result(d, _already(d)) for d in documents if d["id"] not in live}
    for run_id, killing in _send(live, collect=not no_collect).items():
        results[run_id] = _wait(run_id, killing)
    _print([results[document["id"]] for document in documents], as_json)


def _send(live: list[str], *, collect: bool) -> "dict[str, Killing]":
    """Every run is told before any is waited for; what stands in the way of one stops no other."""
    if not live:
        return {}
    from gpurun import engine

    told = engine.kill(live, collect=collect, settings=settings_for_ending())
    for killing in told.values():
        say(killing.said if killing.trouble is None else f"gpurun: {killing.said}")
    troubles = [killing.trouble for killing in told.values() if killing.trouble is not None]
    if len(troubles) == len(told):
        raise max(troubles, key=lambda error: error.exit_code)  # 10 outranks all others
    return told


def _wait(run_id: str, killing: "Killing") -> dict[str, Any]:
    if killing.proven:
        return _untold(run_id, RunState.KILLED, killing)
    if killing.trouble is not None:
        return _untold(run_id, RunState.STILL_BILLING, killing)
    from gpurun.cli.follow import Follower

    try:
        document = Follower(home(), run_id).until_end()
    except KeyboardInterrupt:
        raise Interrupted(
            f"run {run_id} goes on ending; `gpurun status {run_id}` shows when it is proven gone"
        ) from None
    if document is None:
        raise UsageError(f"no run {run_id} in the journal; `gpurun status --all` lists them")
    from gpurun import show

    spent = show.money(document["spent_usd"])
    if document["state"] in LIVE:
        return _result(document, f"run {run_id} is not proven gone, {spent} so far")
    return _result(document, f"run {run_id}: destroyed, {spent}")


def _untold(run_id: str, state: RunState, killing: "Killing") -> dict[str, Any]:
    """The journal may never hear of it."""
    billing = state is RunState.STILL_BILLING
    return {
        "id": run_id,
        "state": state.value,
        "exit_code": StillBilling.exit_code if billing else None,
        "spent_usd": None,
        "destroyed_at": None,
        "said": killing.said,
    }


def _result(document: dict[str, Any], said: str) -> dict[str, Any]:
    receipt = document["receipt"]
    return {
        "id": document["id"],
        "state": document["state"],
        "exit_code": document["exit_code"],
        "spent_usd": document["spent_usd"],
        "destroyed_at": receipt["gone_at"] if receipt else None,
        "said": said,
    }


def _already(document: dict[str, Any]) -> str:
    return f"run {document['id']} is already {document['state']}: its box is gone, nothing to do"


def _print(results: list[dict[str, Any]], as_json: bool) -> None:
    billing = [result for result in results if result["state"] in LIVE]
    if as_json:
        print_json({"runs": results})
        if billing:
            raise typer.Exit(StillBilling.exit_code)
        return
    for result in results:
        typer.echo(result["said"])
    if not results:
        typer.echo("nothing to kill: no run is live")
    if billing:
        ids = " ".join(result["id"] for result in billing)
        raise StillBilling(
            f"{ids} may still bill: not proven gone after 60 s. The keeper goes on trying; run "
            f"`gpurun kill {ids}` again, or end it in the provider's console."
        )


def _count(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"
