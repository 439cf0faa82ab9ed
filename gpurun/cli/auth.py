"""`auth`: keep a cloud's API key, and prove that it works."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpurun.cli.talk import AsJson, at_terminal, print_json, say, tell
from gpurun.errors import ProviderUnreachable, UsageError

if TYPE_CHECKING:
    from gpurun.provider import Provisioner
    from gpurun.settings import Settings


def auth(
    provider: Annotated[str, typer.Argument(help="vast or prime.")],
    ssh_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Register this public SSH key with the account too."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Store a cloud's API key, read from a prompt or stdin, in the settings; check it first."""
    from gpurun import places, wiring
    from gpurun import settings as configuration
    from gpurun.clock import SystemClock
    from gpurun.keystore import store

    if provider not in wiring.CLOUDS:
        known = ", ".join(wiring.CLOUDS)
        raise UsageError(f"{provider!r} takes no key: those that do are {known}")
    public = _public_key(ssh_key) if ssh_key is not None else ""
    settings, path = configuration.load(), places.config_file()
    stored = not (public and wiring.has_key(provider, settings))
    if stored:
        key = _read_key(provider)
        settings = _with_key(settings, provider, key)
    cloud = wiring.provisioner(provider, settings, SystemClock())
    try:
        account = cloud.account()
    except ProviderUnreachable as error:
        if not stored:
            raise
        account = None
        say(f"gpurun: stored without being checked: {error}")
    if stored:
        store(path, provider, key)
    if public:
        _register(cloud, public)
    if as_json:
        print_json(
            {
                "provider": provider,
                "account": account,
                "stored_in": str(path) if stored else None,
                "ssh_key": public.split()[1] if public else None,
            }
        )
        return
    if stored:
        tell(f"the key of {provider} is in {path}")
    if account is not None:
        tell(f"it is the key of account {account}; `gpurun doctor` says what it may do")
        for line in _lacks(cloud):
            tell(line)
    if public:
        tell(f"{ssh_key} is let in on new boxes of {provider}")


def _lacks(cloud: Provisioner) -> list[str]:
    """What stands in the way of renting with this key; nothing where that cannot be asked."""
    from gpurun.errors import ProviderError
    from gpurun.provider import Examined

    try:
        found = cloud.remarks() if isinstance(cloud, Examined) else []
    except ProviderError:
        return []
    return [f"WANT  {remark.what}: {remark.says}" for remark in found if not remark.ok]


def _read_key(provider: str) -> str:
    if at_terminal():
        try:
            key = getpass.getpass(f"API key of {provider} (not shown): ").strip()
        except EOFError:
            key = ""
    else:
        key = sys.stdin.readline().strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(
            f"no API key of {provider} was read; write it at the prompt, or to stdin: "
            f"`gpurun auth {provider} < file`. Nothing was stored."
        )
    return key


def _with_key(settings: Settings, provider: str, key: str) -> Settings:
    from pydantic import SecretStr

    keys = {**settings.keys, provider: SecretStr(key)}
    return settings.model_copy(update={"keys": keys})


def _public_key(path: Path) -> str:
    if path.suffix != ".pub":
        path = path.with_name(f"{path.name}.pub")
    try:
        text = path.expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read ({error}): name a public key file") from None
    if len(text.split()) < 2 or "PRIVATE" in text:
        raise UsageError(f"{path} holds no public SSH key: make one with `ssh-keygen -t ed25519`")
    return text


def _register(cloud: Provisioner, public: str) -> None:
    from gpurun.provider import KeepsSshKeys

    if not isinstance(cloud, KeepsSshKeys):
        raise UsageError(f"{cloud.name} keeps no SSH keys; nothing was registered")
    if not any(each.split()[:2] == public.split()[:2] for each in cloud.ssh_keys()):
        cloud.register_ssh_key("gpurun", public)
