"""The commands, and what becomes of their errors: one line, or one JSON document, and a code."""

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import click
import typer

from gpurun import __version__
from gpurun.cli import (
    auth,
    end,
    health,
    keeper,
    notify,
    offers,
    recipes,
    report,
    runs,
    status,
    up,
    visit,
)
from gpurun.cli.talk import Interrupted, error_document, home, print_json, say
from gpurun.errors import GpurunError

BUG = 1
INTERRUPTED = 130

app = typer.Typer(
    name="gpurun",
    help="Rent the right GPUs, train, fetch the results, prove the box gone.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
app.command()(offers.offers)
app.command()(up.up)
app.command()(status.status)
app.command()(end.kill)
app.command()(status.logs)
app.command()(visit.ssh)
app.command()(runs.pull)
app.command("ssh-config")(visit.ssh_config)
app.command()(runs.extend)
app.command()(runs.resume)
app.command()(report.report)
app.add_typer(recipes.recipes, name="recipes")
app.command()(auth.auth)
app.command()(health.doctor)
app.command()(health.orphans)
app.add_typer(keeper.app, name="keeper")
app.add_typer(notify.app, name="notify")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gpurun {__version__}")
        raise typer.Exit


@app.callback()
def _first(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand != "keeper" and "--help" not in sys.argv:
        keeper.revive()


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code (docs/exit-codes.md)."""
    as_json = "--json" in arguments
    try:
        _invoke(arguments)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        return _failed("UsageError", _click_message(error), error.exit_code, as_json)
    except GpurunError as error:
        return _failed(type(error).__name__, str(error), error.exit_code, as_json)
    except Interrupted as error:
        return _failed("Interrupted", str(error), INTERRUPTED, as_json)
    except (KeyboardInterrupt, click.Abort):
        return _failed("Interrupted", "interrupted", INTERRUPTED, as_json)
    except BrokenPipeError:
        _silence_stdout()
        return INTERRUPTED
    except Exception as error:
        return _failed(type(error).__name__, _crashed(error), BUG, as_json)
    return 0


def _invoke(arguments: Sequence[str]) -> None:
    command = typer.main.get_command(app)
    if "_GPURUN_COMPLETE" in os.environ:
        command.main(list(arguments), prog_name="gpurun")
    with command.make_context("gpurun", list(arguments)) as context:
        command.invoke(context)


def _failed(kind: str, message: str, exit_code: int, as_json: bool) -> int:
    with contextlib.suppress(OSError):  # the terminal may be gone
        if as_json:
            print_json(error_document(kind, message, exit_code))
            sys.stdout.flush()
        else:
            say(f"gpurun: {message}")
    return exit_code


def _click_message(error: click.ClickException) -> str:
    message = error.format_message()
    if isinstance(error, click.UsageError) and error.ctx is not None:
        message = f"{message} See `{error.ctx.command_path} --help`."
    return message


def _crashed(error: Exception) -> str:
    """Keep the traceback; it holds no values of variables, hence no secret of ours."""
    from gpurun.clock import SystemClock

    text = "".join(traceback.format_exception(error))
    try:
        folder = home() / "crashes"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{SystemClock().now():%Y%m%dT%H%M%SZ}-{os.getpid()}.txt"
        path.write_text(f"gpurun {__version__}: {' '.join(sys.argv[1:2])}\n{text}")
        path.chmod(0o600)
    except (OSError, GpurunError):
        say(text)
        return f"a bug in gpurun: {error!r}"
    return f"a bug in gpurun: {error!r}; the traceback is in {path}"


def _silence_stdout() -> None:
    """Whoever read our output has gone: nothing more is flushed at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
