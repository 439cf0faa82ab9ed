"""Going into a live box oneself: what `ssh` is started with, and a Host block for editors."""

import os
import shlex
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpurun.engine.live import live_box
from gpurun.errors import ProviderError, UsageError
from gpurun.phases import ENV_FILE
from gpurun.places import Places
from gpurun.provider import Login, OverSsh, OwnShell
from gpurun.settings import Settings
from gpurun.shell.local import LocalShell

REACH_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Visit:
    """A process that takes the place of this one."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    folder: Path


def visit(
    run_id: str, command: Sequence[str], forwards: Sequence[str], settings: Settings
) -> Visit:
    """Enter the box of a live run: a login shell there, or one command in the run's directory."""
    ctx, attempt = live_box(run_id, settings)
    assert attempt.instance_id is not None
    text = f"[ ! -f {ENV_FILE} ] || . ./{ENV_FILE}\n"
    text += " ".join(command) if command else 'exec "${SHELL:-sh}"'
    if isinstance(ctx.cloud, OverSsh):
        login = ctx.cloud.login(attempt.instance_id)
        there = f"cd {shlex.quote(login.root)} && {{\n{login.enter}\n{text}\n}}"
        wanted = [word for forward in forwards for word in ("-L", forward)]
        terminal = [] if command else ["-t"]
        words = ["ssh", *_options(login, ctx.places), *wanted, *terminal, _reached(login)[0], there]
        return Visit(tuple(words), os.environ, Path.cwd())
    if forwards:
        raise UsageError(f"a box of {ctx.cloud.name} is on this machine: its ports need no -L")
    shell = ctx.cloud.shell(attempt.instance_id) if isinstance(ctx.cloud, OwnShell) else None
    if not isinstance(shell, LocalShell):
        raise UsageError(f"provider {ctx.cloud.name} offers no way into its boxes")
    argv, env = shell.words(text)
    passed = {name: os.environ[name] for name in ("TERM", "LANG", "SHELL") if name in os.environ}
    return Visit(argv, {**env, **passed}, shell.root)


def ssh_config(run_id: str, settings: Settings) -> str:
    """A Host block named gpurun-RUN: for editors, rsync and whatever else speaks SSH."""
    ctx, attempt = live_box(run_id, settings)
    assert attempt.instance_id is not None
    if not isinstance(ctx.cloud, OverSsh):
        raise UsageError(
            f"the box of run {run_id} is on this machine; `gpurun ssh {run_id}` enters it"
        )
    login = ctx.cloud.login(attempt.instance_id)
    _, (host, port) = _reached(login)
    lines = [f"Host gpurun-{run_id}", f"    HostName {host}", f"    Port {port}"]
    lines.append(f"    User {login.user}")
    lines += [f"    {name} {value}" for name, value in _settings(login, ctx.places)]
    return "\n".join(lines)


def _options(login: Login, places: Places) -> list[str]:
    _, (_, port) = _reached(login)
    pairs = [*_settings(login, places), ("Port", str(port))]
    return [word for name, value in pairs for word in ("-o", f"{name}={value}")]


def _settings(login: Login, places: Places) -> list[tuple[str, str]]:
    """The host key is the one that was pinned at first contact; another is refused."""
    known = [
        ("UserKnownHostsFile", f'"{places.known_hosts / login.name}"'),
        ("HostKeyAlias", login.name),
        ("StrictHostKeyChecking", "yes"),
    ]
    if login.key is not None:
        known += [("IdentityFile", f'"{login.key}"'), ("IdentitiesOnly", "yes")]
    return known


def _reached(login: Login) -> tuple[str, tuple[str, int]]:
    """`user@host` and the first address that answers."""
    for host, port in login.addresses:
        with suppress(OSError):
            socket.create_connection((host, port), timeout=REACH_WITHIN_S).close()
            return f"{login.user}@{host}", (host, port)
    raise ProviderError(
        f"nothing answers at {', '.join(f'{h}:{p}' for h, p in login.addresses)}; "
        "see `gpurun status`, then try again"
    )
