"""`notify`: messages to a person, tried."""

import typer

from gpurun.cli.talk import AsJson, print_json, tell
from gpurun.errors import ProviderError, UsageError

app = typer.Typer(
    help="Messages about runs, to the addresses of `notify` in the settings.",
    rich_markup_mode=None,
    no_args_is_help=True,
)


@app.callback()
def _group() -> None:
    """Messages about runs, to the addresses of `notify` in the settings."""


@app.command()
def test(as_json: AsJson = False) -> None:
    """Send a test message to every address; exits with 4 when one is not taken."""
    from gpurun import notify
    from gpurun import settings as configuration
    from gpurun.places import config_file

    settings = configuration.load()
    if not settings.notify:
        raise UsageError(
            f'no address to notify: write notify = ["mailto://..."] into {config_file()}; '
            "docs/keeper.md has the events"
        )
    urls = [(number, url.get_secret_value()) for number, url in enumerate(settings.notify, 1)]
    wanted = ", ".join(settings.notify_on)
    found = notify.send(urls, "gpurun: a test", f"You will be told of: {wanted}.")
    if as_json:
        keys = ("number", "service", "ok", "trouble")
        rows = [(each.number, each.service, each.ok, each.trouble or None) for each in found]
        print_json({"deliveries": [dict(zip(keys, row, strict=True)) for row in rows]})
    else:
        for each in found:
            tell(each.line())
    if not all(each.ok for each in found):
        raise typer.Exit(ProviderError.exit_code)
