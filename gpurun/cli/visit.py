"""`ssh` and `ssh-config`: into a live box."""

import os
import sys
from typing import Annotated

import typer

from gpurun.cli.talk import AsJson, OneRun, home, print_json, tell


def ssh(
    run: OneRun,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- CMD]", help="Left out: a shell.")
    ] = None,
    forward: Annotated[
        list[str] | None,
        typer.Option("-L", metavar="PORT:HOST:PORT", help="Forward a port, as ssh does."),
    ] = None,
) -> None:
    """Enter a live box, or run one command in it."""
    from gpurun import engine, glance
    from gpurun import settings as configuration

    run_id = glance.resolve(home(), run)
    there = engine.visit(run_id, command or [], forward or [], configuration.load())
    sys.stdout.flush()
    os.chdir(there.folder)
    os.execvpe(there.argv[0], there.argv, dict(there.env))


def ssh_config(run: OneRun, as_json: AsJson = False) -> None:
    """Print a Host block for a live box.

    For editors and rsync: `gpurun ssh-config RUN >> ~/.ssh/config`.
    """
    from gpurun import engine, glance
    from gpurun import settings as configuration

    run_id = glance.resolve(home(), run)
    block = engine.ssh_config(run_id, configuration.load())
    if as_json:
        print_json({"id": run_id, "host": f"gpurun-{run_id}", "config": block})
    else:
        tell(block)
